package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"

	"catalogd/internal/catalog"
)

func init() {
	for _, mediaType := range []string{"application/x-ndjson", "image/tiff", "image/jp2", "application/geopackage+sqlite3", "application/vnd.flatgeobuf", "application/geo+json", "text/html", "application/yaml"} {
		openapi3filter.RegisterBodyDecoder(mediaType, openapi3filter.FileBodyDecoder)
	}
}

func TestContractIsValidOpenAPI(t *testing.T) {
	if err := document().Validate(t.Context()); err != nil {
		t.Error(err)
	}
}

// Code, contract and page say the same of every problem.
func TestProblemsAgree(t *testing.T) {
	var want, enum, page []string
	for _, code := range catalog.Codes() {
		want = append(want, fmt.Sprintf("%s %d %s", code, code.Status(), titles[code]))
	}
	if len(titles) != len(want) {
		t.Errorf("%d titles for %d codes", len(titles), len(want))
	}

	for _, code := range document().Components.Schemas["Code"].Value.Enum {
		c := catalog.Code(code.(string))
		enum = append(enum, fmt.Sprintf("%s %d %s", c, c.Status(), titles[c]))
	}
	if slices.Sort(enum); !slices.Equal(enum, want) {
		t.Errorf("contract lists\n%s\nwant\n%s", strings.Join(enum, "\n"), strings.Join(want, "\n"))
	}

	text, err := os.ReadFile("../../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)\n\n(\d+)\. (.*)\.\n\n\S`).FindAllStringSubmatch(string(text), -1) {
		page = append(page, strings.Join(m[1:], " "))
	}
	if slices.Sort(page); !slices.Equal(page, want) {
		t.Errorf("docs/problems.md lists\n%s\nwant\n%s", strings.Join(page, "\n"), strings.Join(want, "\n"))
	}
}

// sample is a request that succeeds.
type sample struct {
	path        string
	contentType string
	body        string
}

const (
	beginBody = `{"collection":"landcover","tile_id":"t0001","identity":{"version":"1","scene":"S2A"},"owner":"w1","request_id":"r1"}`
	oneUnit   = `{"collection":"landcover","tile_id":"t0001","identity":{"version":"1"}}`
)

var samples = map[string]sample{
	"listCollections":    {path: "/v1/collections"},
	"createCollection":   {"/v1/collections", "application/json", `{"id":"landcover","title":"Land cover"}`},
	"getCollection":      {path: "/v1/collections/landcover"},
	"updateCollection":   {"/v1/collections/landcover", "application/json", `{"sparse_allowed":true}`},
	"deleteCollection":   {path: "/v1/collections/landcover?why=a+mistake"},
	"checkUnits":         {"/v1/units:check?verify=head", "application/json", `{"units":[` + oneUnit + `]}`},
	"getUnit":            {path: "/v1/units/" + unitKey.String()},
	"headUnit":           {path: "/v1/units/" + unitKey.String()},
	"getCurrent":         {path: "/v1/slots/current?collection=landcover&tile_id=33UXP/t0001"},
	"getHistory":         {path: "/v1/slots/history?collection=landcover&tile_id=33UXP/t0001"},
	"beginAttempt":       {"/v1/attempts", "application/json", beginBody},
	"startUpload":        {"/v1/attempts/" + attemptID.String() + "/upload", "application/json", `{"size_bytes":10000000,"part_size":5242880}`},
	"listStores":         {path: "/v1/stores"},
	"uploadOutput":       {"/v1/attempts/" + attemptID.String() + "/output", "", "bytes"},
	"completeAttempt":    {"/v1/attempts/" + attemptID.String() + "/complete", "application/json", `{"size_bytes":7}`},
	"failAttempt":        {"/v1/attempts/" + attemptID.String() + "/fail", "application/json", `{"class":"transient","reason":"http_503"}`},
	"abandonAttempt":     {path: "/v1/attempts/" + attemptID.String() + "/abandon"},
	"heartbeat":          {"/v1/heartbeats", "application/json", `{"attempts":["` + attemptID.String() + `"]}`},
	"registerOutput":     {"/v1/outputs", "application/json", strings.TrimSuffix(beginBody, "}") + `,"staged":"a/b.tif"}`},
	"publishVersion":     {"/v1/publish", "application/json", `{"collection":"landcover","version":"1","why":"back to the old model"}`},
	"listQuarantine":     {path: "/v1/quarantine?limit=5"},
	"getQuarantined":     {path: "/v1/quarantine/" + unitKey.String()},
	"releaseQuarantined": {"/v1/quarantine:release", "application/json", `{"collection":"landcover","class":"transient","why":"the API is back"}`},
	"listBatches":        {path: "/v1/batches?limit=5"},
	"openBatch":          {"/v1/batches", "application/json", `{"name":"nightly","collection":"landcover"}`},
	"getBatch":           {path: "/v1/batches/nightly"},
	"addBatchUnits":      {"/v1/batches/nightly/units", "application/json", `{"units":[` + oneUnit + `]}`},
	"listPending":        {path: "/v1/batches/nightly/pending"},
	"claimUnits":         {"/v1/batches/nightly/claim", "application/json", `{"max":50,"owner":"w1","request_id":"c1"}`},
	"runGate":            {"/v1/batches/nightly/gate", "application/json", `{"max_missing_frac":0.002}`},
	"getGate":            {path: "/v1/batches/nightly/gate/" + attemptID.String()},
	"publishBatch":       {"/v1/batches/nightly/publish", "application/json", `{"why":"good enough"}`},
	"listReconciles":     {path: "/v1/reconcile?limit=5"},
	"startReconcile":     {"/v1/reconcile", "application/json", `{"store":"default","prefix":"landcover/","min_age_seconds":0,"wait_seconds":1}`},
	"reconcileListing":   {"/v1/reconcile:listing?settle_seconds=0.5", "application/x-ndjson", `{"key":"` + objectKey + `","size":7000}`},
	"getReconcile":       {path: "/v1/reconcile/184"},
	"cancelReconcile":    {path: "/v1/reconcile/184/cancel"},
	"listFindings":       {path: "/v1/reconcile/184/findings?limit=5"},
	"planReconcile":      {"/v1/reconcile/184/plan", "application/json", `{"orphan":"leave"}`},
	"listPlans":          {path: "/v1/plans?limit=5"},
	"getPlan":            {path: "/v1/plans/184"},
	"listActs":           {path: "/v1/plans/184/acts?limit=5"},
	"applyPlan":          {"/v1/plans/184/apply", "application/json", `{"max_change":0.1,"why":"looked at"}`},
	"listTrash":          {path: "/v1/trash?limit=5"},
	"emptyTrash":         {"/v1/trash:empty", "application/json", `{"store":"file:///store/","all":true}`},
	"restoreTrashed":     {"/v1/trash/184/restore", "application/json", `{"why":"it was wanted"}`},
	"listScrubs":         {path: "/v1/scrub"},
	"startScrub":         {"/v1/scrub", "application/json", `{"fraction":0.5}`},
	"recover":            {path: "/v1/recover"},
	"sweep":              {path: "/v1/sweep"},
	"listTokens":         {path: "/v1/tokens"},
	"createToken":        {"/v1/tokens", "application/json", `{"name":"nightly","role":"write"}`},
	"revokeToken":        {path: "/v1/tokens/nightly"},
	"getData":            {path: "/data/" + objectKey},
	"headData":           {path: "/data/" + objectKey},
	"getIndex":           {path: "/"},
	"getContract":        {path: "/openapi.yaml"},
	"getProblem":         {path: "/problems/sparse"},
	"getHealth":          {path: "/healthz"},
	"getReadiness":       {path: "/readyz"},
	"getMetrics":         {path: "/metrics"},
}

// operations of the contract, in order, each with its sample.
func operations(t *testing.T) []*operation {
	t.Helper()
	all := slices.SortedFunc(maps.Values(contract()), func(a, b *operation) int { return strings.Compare(a.id, b.id) })
	for _, op := range all {
		if _, ok := samples[op.id]; !ok {
			t.Errorf("operation %s has no sample request", op.id)
		}
	}
	return all
}

// Every operation × role.
func TestRoles(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	anonymous, _ := serve(t, newFake(), func(c *Config) { c.Anonymous = AnonymousRead })
	for _, op := range operations(t) {
		s := samples[op.id]
		for _, caller := range []struct {
			name, url, token string
			role             catalog.Role
		}{
			{"no token", url, "", ""},
			{"no token, anonymous read", anonymous, "", catalog.RoleRead},
			{"an unknown token, anonymous read", anonymous, "guess", ""},
			{"read", url, "read", catalog.RoleRead},
			{"write", url, "write", catalog.RoleWrite},
			{"admin", url, "admin", catalog.RoleAdmin},
		} {
			t.Run(op.id+"/"+caller.name, func(t *testing.T) {
				res, body := call(t, op.route.Method, caller.url+s.path, caller.token, s.contentType, s.body)
				want := 0
				switch {
				case op.role == "", caller.role.Allows(op.role):
				case caller.role == "" || caller.token == "":
					want = http.StatusUnauthorized
				default:
					want = http.StatusForbidden
				}
				switch {
				case want == 0 && res.StatusCode >= 300:
					t.Errorf("%d %s, want success", res.StatusCode, body)
				case want != 0 && res.StatusCode != want:
					t.Errorf("%d %s, want %d", res.StatusCode, body, want)
				case want == http.StatusUnauthorized && res.Header.Get("WWW-Authenticate") == "":
					t.Error("401 without WWW-Authenticate")
				case want == http.StatusForbidden && !strings.Contains(body, "role "+string(op.role)):
					t.Errorf("403 %s does not name the role %s", body, op.role)
				}
			})
		}
	}
}

// Every operation × status that the contract lists, each answer held against
// the contract.
func TestEveryOperationAndStatus(t *testing.T) {
	failures := map[int]error{
		404: catalog.Errorf(catalog.CodeNotFound, "not there"),
		409: catalog.Errorf(catalog.CodeUnitHeld, "held"),
		413: catalog.Errorf(catalog.CodeTooLarge, "too large"),
		422: catalog.Errorf(catalog.CodeTruncated, "cut off"),
		500: errors.New("password=hunter2"),
		503: catalog.Errorf(catalog.CodeDatabaseUnavailable, "away").Because(errors.New("password=hunter2")),
		507: catalog.Errorf(catalog.CodeStoreFull, "full"),
	}
	conditions := map[int][]string{
		206: {"Range", "bytes=0-3"},
		304: {"If-None-Match", `"` + newFake().tile.Checksum + `"`},
		412: {"If-Match", `"other"`},
		416: {"Range", "bytes=999999-"},
	}
	huge := map[bool]string{false: strings.Repeat(" ", maxBody+1), true: strings.Repeat(" ", maxCheckBody+1)}

	for _, op := range operations(t) {
		for status := range op.route.Operation.Responses.Map() {
			t.Run(op.id+"/"+status, func(t *testing.T) {
				want, err := strconv.Atoi(status)
				if err != nil {
					t.Fatalf("the contract must list statuses one by one, not %q", status)
				}
				f := newFake()
				url, _ := serve(t, f, nil)
				s, role, header := samples[op.id], "admin", conditions[want]
				switch want {
				case 201:
					s.body = strings.Replace(s.body, "nightly", "another", 1)
				case 202:
					f.gate = catalog.GateRunning
				case 302:
					f.redirects = true
				case 400:
					switch {
					case op.schema() != nil:
						s.body = `{"`
					case strings.Contains(s.path, "limit="), strings.Contains(s.path, "seconds="):
						s.path = strings.NewReplacer("limit=", "limit=!", "seconds=", "seconds=!").Replace(s.path)
					case strings.Contains(s.path, "?"):
						s.path, _, _ = strings.Cut(s.path, "?")
					default:
						s.path = regexp.MustCompile(unitKey.String()+"|"+attemptID.String()+"|landcover$|nightly|184|sparse$").ReplaceAllString(s.path, "!")
					}
				case 401:
					role = ""
				case 403:
					role = "read"
				case 413:
					if op.schema() == nil {
						f.fail = failures[want]
					} else {
						s.body = huge[op.streaming]
					}
				case 415:
					s.contentType = "text/csv"
				default:
					f.fail = failures[want]
				}
				res, body := call(t, op.route.Method, url+s.path, role, s.contentType, s.body, header...)
				if res.StatusCode != want {
					t.Fatalf("%d %s, want %d", res.StatusCode, body, want)
				}
				if strings.Contains(body, "hunter2") {
					t.Errorf("the cause reached the client: %s", body)
				}
				holdToContract(t, op, res, body)
			})
		}
	}
}

func holdToContract(t *testing.T, op *operation, res *http.Response, body string) {
	t.Helper()
	err := openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: res.Request, Route: op.route},
		Status:                 res.StatusCode,
		Header:                 res.Header,
		Body:                   io.NopCloser(bytes.NewReader([]byte(body))),
		Options:                &openapi3filter.Options{IncludeResponseStatus: true, SchemaValidationOptions: formats},
	})
	if err != nil {
		t.Errorf("%s %d is not what the contract says: %v", op.id, res.StatusCode, err)
	}
	if res.StatusCode >= 400 && op.route.Method != http.MethodHead {
		problemOf(t, res, body)
	}
}

// holdLine holds one line of NDJSON against a schema of the contract.
func holdLine(t *testing.T, schema string, line []byte) {
	t.Helper()
	value, err := readJSON(line, false)
	if err == nil {
		err = document().Components.Schemas[schema].Value.VisitJSON(value, append(slices.Clone(formats), openapi3.VisitAsResponse())...)
	}
	if err != nil {
		t.Errorf("line %s is no %s: %v", line, schema, err)
	}
}

// The type of every problem leads to what it means, and to no other's meaning.
func TestTypesOfProblems(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	for _, code := range catalog.Codes() {
		res, body := call(t, "GET", url+newProblem(catalog.Errorf(code, "x"), "").Type, "", "", "")
		want := fmt.Sprintf("%s\n\n%d. %s.\n\n", code, code.Status(), titles[code])
		if res.StatusCode != 200 || !strings.HasPrefix(body, want) || len(body) < len(want)+10 || strings.Contains(body, "\n#") {
			t.Errorf("%s: %d %s", code, res.StatusCode, body)
		}
	}
}
