package httpapi

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"catalogd/api"
	"catalogd/docs"
)

func (s *server) GetHealth(context.Context, GetHealthRequestObject) (GetHealthResponseObject, error) {
	return GetHealth200JSONResponse{Status: Ok, Version: s.Version}, nil
}

func (s *server) GetReadiness(ctx context.Context, _ GetReadinessRequestObject) (GetReadinessResponseObject, error) {
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	if err := s.Catalogue.Ready(ctx); err != nil {
		return nil, err
	}
	return GetReadiness200JSONResponse{Status: Ok, Version: s.Version}, nil
}

func (s *server) ListStores(context.Context, ListStoresRequestObject) (ListStoresResponseObject, error) {
	out := ListStores200JSONResponse{Stores: []Store{}}
	for _, store := range s.Stores.List() {
		one := Store{Name: store.Name, StoreId: store.ID, Root: store.Root, Location: store.Location}
		if store.Capabilities != nil {
			one.Capabilities = &store.Capabilities
		}
		out.Stores = append(out.Stores, one)
	}
	return out, nil
}

func (s *server) openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(api.OpenAPI)
}

// aboutProblem tells one part of docs/problems.md. The contract has let through only
// codes that there are, and a test holds page and codes together.
func (s *server) aboutProblem(w http.ResponseWriter, r *http.Request) {
	code := chi.URLParam(r, "code")
	_, part, ok := strings.Cut(docs.Problems, "\n### "+code+"\n\n")
	if !ok {
		s.notFound(w, r)
		return
	}
	part, _, _ = strings.Cut(part, "\n#")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, code+"\n\n"+strings.TrimSpace(part)+"\n")
}

const page = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>catalogd</title>
<h1>catalogd</h1>
<p>A catalogue of the rasters that batch pipelines write.</p>
<ul>
<li><a href="openapi.yaml">openapi.yaml</a>: what can be asked here
<li><a href="v1/collections">v1/collections</a>: what there is
<li><a href="healthz">healthz</a>, <a href="readyz">readyz</a>, <a href="metrics">metrics</a>
</ul>
</html>
`

func (s *server) index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte(page))
}
