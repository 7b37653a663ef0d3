package client

import (
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"catalogd/internal/catalog"
)

func TestMembers(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // or what the error says
	}{
		{nil, `{}`},
		{[]string{"version=v7", "n:=10", "s:=\"x\"", "l:=[1, 2]", "e="}, `{"version":"v7","n":10,"s":"x","l":[1, 2],"e":""}`},
		{[]string{"a=b=c", "u=é😀", `q="\`, "x:y=1"}, `{"a":"b=c","u":"é😀","q":"\"\\","x:y":"1"}`},
		{[]string{"n:=007"}, "not JSON"},
		{[]string{"n:="}, "not JSON"},
		{[]string{"scene=caf\xe9"}, "not UTF-8"},
		{[]string{"caf\xe8:=1"}, "not UTF-8"},
		{[]string{"n"}, "neither"},
		{[]string{"=n"}, "neither"},
		{[]string{":=1"}, "neither"},
		{[]string{"n=1", "n:=1"}, "twice"},
	} {
		got, err := Members("identity", c.args)
		if err == nil && string(got) != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %s, %v; want %s", c.args, got, err, c.want)
		}
	}
	a, err := NewUnit("landcover", "t", []string{"version=v1", "n:=10.0"}, "")
	b, err2 := NewUnit("landcover", "t", nil, `{"n": 1e1, "version": "v1"}`)
	if err != nil || err2 != nil || a.Key != b.Key {
		t.Errorf("%v, %v: %s and %s", err, err2, a.Key, b.Key)
	}
}

func packed(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	if err := errors.Join(json.NewEncoder(w).Encode(v), w.Close()); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func TestOrigin(t *testing.T) {
	context := map[string]any{"run_id": "r1", "job_name": "tiles", "retry_number": 2, "asset_keys": []string{"dem"}, "partition_key": "33UXP"}
	file := filepath.Join(t.TempDir(), "context")
	text, _ := json.Marshal(context)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("ä", 300)
	for _, c := range []struct {
		env  map[string]string
		want Origin
	}{
		{map[string]string{"AIRFLOW_CTX_DAG_ID": "tiles", "AIRFLOW_CTX_DAG_RUN_ID": "manual__2026-08-04", "AIRFLOW_CTX_TASK_ID": "cut", "AIRFLOW_CTX_TRY_NUMBER": "3",
			"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pod"}, Origin{"airflow:tiles/manual__2026-08-04/cut", 3}},
		{map[string]string{"AIRFLOW_CTX_DAG_ID": "tiles", "AIRFLOW_CTX_TASK_ID": "cut", "AIRFLOW_CTX_MAP_INDEX": "7", "AIRFLOW_CTX_TRY_NUMBER": "x"}, Origin{"airflow:tiles/cut[7]", 0}},
		{map[string]string{"AIRFLOW_CTX_DAG_ID": "tiles", "AIRFLOW_CTX_TASK_ID": "cut", "AIRFLOW_CTX_MAP_INDEX": "-1"}, Origin{"airflow:tiles/cut", 0}},
		{map[string]string{"DAGSTER_PIPES_CONTEXT": packed(t, map[string]any{"data": context})}, Origin{"dagster:tiles/r1/dem/33UXP", 2}},
		{map[string]string{"DAGSTER_PIPES_CONTEXT": packed(t, map[string]any{"path": file})}, Origin{"dagster:tiles/r1/dem/33UXP", 2}},
		{map[string]string{"DAGSTER_PIPES_CONTEXT": packed(t, map[string]any{"path": "/nowhere"}), "SLURM_JOB_ID": "9"}, Origin{"slurm:9", 0}},
		{map[string]string{"DAGSTER_PIPES_CONTEXT": "AAAA", "DAGSTER_RUN_JOB_NAME": "tiles", "DAGSTER_RUN_STEP_KEY": "cut"}, Origin{"dagster:tiles/cut", 0}},
		{map[string]string{"CELERY_TASK_ID": "f3", "CELERY_TASK_RETRIES": "1"}, Origin{"celery:f3", 1}},
		{map[string]string{"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "2", "SLURM_CLUSTER_NAME": "hpc", "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "4"},
			Origin{"slurm:hpc/10_2/0", 4}},
		{map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "cut-0", "POD_NAMESPACE": "eo"}, Origin{"kubernetes:eo/cut-0", 0}},
		{map[string]string{"CELERY_TASK_ID": "a\nb"}, Origin{"celery:a_b", 0}},
		{map[string]string{"HOSTNAME": "laptop"}, Origin{shorten(here()), 0}},
	} {
		if got := FindOrigin(func(name string) string { return c.env[name] }); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.env, got, c.want)
		}
	}
	a, b := shorten(long+"a"), shorten(long+"b")
	if a == b || len(a) > maxOwner || !strings.HasPrefix(a, "ää") {
		t.Errorf("%q and %q", a, b)
	}
}

// A request is sent again while that may help, for as long as patience goes, and no
// longer.
func TestPatience(t *testing.T) {
	problem := func(status int, code catalog.Code) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"code": %q, "detail": "said", "field": "/x"}`, code)
		}
	}
	away := problem(503, catalog.CodeDatabaseUnavailable)
	cut := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	proxy := func(w http.ResponseWriter) { w.WriteHeader(502); fmt.Fprint(w, "<html>") }
	good := func(w http.ResponseWriter) { fmt.Fprint(w, `{"a": 1}`) }
	html := func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }
	for name, c := range map[string]struct {
		patience time.Duration
		answers  []func(http.ResponseWriter)
		asked    int
		says     string // "" for success
	}{
		"comes back":        {time.Minute, []func(http.ResponseWriter){cut, away, proxy, problem(500, catalog.CodeInternal), good}, 5, ""},
		"one bad answer":    {time.Minute, []func(http.ResponseWriter){away, away, away, problem(500, catalog.CodeInternal), good}, 5, ""},
		"refused":           {time.Minute, []func(http.ResponseWriter){problem(409, catalog.CodeKeyCollision)}, 1, "said (key_collision at /x)"},
		"full":              {time.Minute, []func(http.ResponseWriter){problem(507, catalog.CodeStoreFull)}, 1, "store_full"},
		"fsync":             {time.Minute, []func(http.ResponseWriter){problem(500, catalog.CodeFsyncFailed)}, 1, "fsync_failed"},
		"broken":            {time.Minute, []func(http.ResponseWriter){problem(500, catalog.CodeInternal)}, 4, "internal"},
		"asked once":        {0, []func(http.ResponseWriter){away}, 1, "database_unavailable"},
		"nobody":            {0, []func(http.ResponseWriter){cut}, 1, "no answer from catalogd"},
		"patience ends":     {300 * time.Millisecond, []func(http.ResponseWriter){away}, -1, "in 0s"},
		"something else":    {time.Minute, []func(http.ResponseWriter){html}, 1, "does not answer as catalogd does"},
		"a proxy's refusal": {time.Minute, []func(http.ResponseWriter){func(w http.ResponseWriter) { w.WriteHeader(404) }}, 1, "is there a proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n := int(asked.Add(1))
				c.answers[min(n, len(c.answers))-1](w)
			}))
			defer server.Close()
			client := Client{URL: server.URL + "/", Patience: c.patience}
			var answer map[string]int
			err := client.Call(t.Context(), http.MethodPost, "/v1/attempts", map[string]string{}, &answer)
			if c.says == "" && (err != nil || answer["a"] != 1) || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, %v; want %q", answer, err, c.says)
			}
			if c.asked > 0 && int(asked.Load()) != c.asked {
				t.Errorf("asked %d times, want %d", asked.Load(), c.asked)
			}
		})
	}
}

// A store is written to directly only where it reads as the attempt's own.
func TestShared(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{".staging", ".catalogd"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, ".catalogd", "store.json"), []byte(`{"id": "s1"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		store, key, path string
		want             bool
	}{
		{"s1", ".staging/a.tif", root + "/.staging/a.tif", true},
		{"s2", ".staging/a.tif", root + "/.staging/a.tif", false},
		{"s1", ".staging/a.tif", "/nowhere/.staging/a.tif", false},
		{"s1", ".staging/a.tif", root + "/.staging/b.tif", false},
		{"s1", "", root + "/", false},
		{"s1", ".missing/a.tif", root + "/.missing/a.tif", false},
	} {
		if got := shared(Attempt{StoreID: c.store, StagingKey: c.key, StagingPath: c.path}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A file that cannot be read, or is still written, is no server's fault.
func TestUploadOfWhatCannotBeRead(t *testing.T) {
	growing := filepath.Join(t.TempDir(), "growing")
	if err := os.WriteFile(growing, make([]byte, 32<<20), 0o644); err != nil { // more than lies in sockets
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 1))
		_ = os.Chtimes(growing, time.Time{}, time.Unix(1, 0))
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer server.Close()
	client := Client{URL: server.URL, Patience: time.Minute}
	for name, says := range map[string]string{t.TempDir(): "no regular file", "/nowhere": "no such file", growing: "changed while it was read"} {
		_, _, err := client.Upload(t.Context(), "/v1/attempts/a/output", name, nil)
		var away *UnavailableError
		if err == nil || errors.As(err, &away) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
}

// Bytes that arrive as others are sent again, and never handed over.
func TestUploadIsChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.tif")
	if err := os.WriteFile(file, []byte("pixels"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := staging{path: file, upload: true}
	for flips, want := range map[int64]string{0: "", 1: "", 9: "never came as it is"} {
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if asked.Add(1) <= flips {
				body[0] ^= 1
			}
			fmt.Fprintf(w, `{"checksum": "sha256:%x", "size_bytes": %d}`, sha256.Sum256(body), len(body))
		}))
		h, err := s.hand(t.Context(), &Task{Client: &Client{URL: server.URL}}, Attempt{ID: "a"}, false)
		server.Close()
		if want == "" && (err != nil || h.size != 6 || h.checksum != fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("pixels")))) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d flips: %+v %v", flips, h, err)
		}
	}
}

// A token that is a file's is read again when it is refused.
func TestTokenIsRenewed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer new" {
			w.WriteHeader(401)
			fmt.Fprint(w, `{"code": "unauthenticated"}`)
		}
	}))
	defer server.Close()
	client := Client{URL: server.URL, Token: "old", Renew: func() string { return "new" }}
	if err := client.Call(t.Context(), http.MethodGet, "/", nil, nil); err != nil {
		t.Error(err)
	}
	client = Client{URL: server.URL, Token: "old", Renew: func() string { return "old" }}
	if err := client.Call(t.Context(), http.MethodGet, "/", nil, nil); !IsProblem(err, catalog.CodeUnauthenticated) {
		t.Error(err)
	}
}
