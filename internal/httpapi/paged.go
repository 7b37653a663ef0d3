package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"catalogd/internal/catalog"
)

const ndjsonType = "application/x-ndjson"

// wantsLines tells whether the client asked for NDJSON where JSON is the default.
func wantsLines(ctx context.Context) bool {
	return strings.Contains(exchangeOf(ctx).accept, ndjsonType)
}

// paged are all items of a list as NDJSON. Nothing is held but one page.
type paged[T any] struct {
	ctx context.Context // of the request; a response object is given none
	// page gives the items after one, at most size; nil for the first.
	page func(ctx context.Context, after *T) ([]T, error)
	size int
	item func(T) any
	// last is the last line, after n items; problem is why there are not all.
	last func(n int64, problem *Problem) any
}

// send answers page by page. Until the first page an error is an ordinary problem; from
// then on it goes into the last line.
func (p paged[T]) send(w http.ResponseWriter) error {
	rc := http.NewResponseController(w)
	out := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(out)
	var n int64
	var problem *Problem
	var after *T
	for more := true; more; {
		page, err := p.next(after)
		if err != nil && after == nil {
			return err
		}
		if err != nil {
			x := exchangeOf(p.ctx)
			x.err = known(err)
			problem = new(newProblem(known(err), x.id))
			break
		}
		if after == nil {
			w.Header().Set("Content-Type", ndjsonType)
			w.WriteHeader(http.StatusOK)
		}
		for _, item := range page {
			_ = enc.Encode(p.item(item)) // a bufio.Writer keeps its error for Flush
			after = &item
		}
		n += int64(len(page))
		more = len(page) == p.size
		_ = rc.SetWriteDeadline(time.Now().Add(idle))
		if err := errors.Join(out.Flush(), rc.Flush()); err != nil {
			return catalog.Errorf(catalog.CodeInvalidRequest, "the answer was not read").Because(err)
		}
	}
	_ = enc.Encode(p.last(n, problem))
	return out.Flush()
}

func (p paged[T]) next(after *T) ([]T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, requestDeadline)
	defer cancel()
	return p.page(ctx, after)
}
