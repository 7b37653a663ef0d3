package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// A worker outlasts a server that comes and goes, sends the same request while
// it has no answer, and waits when it is told to.
func TestWorkerAsksAgain(t *testing.T) {
	answers := []func(http.ResponseWriter){
		func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"code": "database_unavailable"}`)
		},
		func(w http.ResponseWriter) { fmt.Fprint(w, `{"verdict": "wait", "retry_after": 0.01}`) },
		func(w http.ResponseWriter) { fmt.Fprint(w, `{"verdict": "skip"}`) },
		func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"code": "key_collision", "detail": "one key stands for one identity"}`)
		},
	}
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			RequestID string `json:"request_id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Header.Get("Authorization") != "Bearer catd_x" {
			t.Errorf("%v, %v", err, r.Header)
		}
		asked = append(asked, body.RequestID)
		answers[len(asked)-1](w)
	}))
	defer server.Close()

	in, queue := io.Pipe()
	receipts, out := io.Pipe()
	ended := make(chan error)
	go func() {
		ended <- Work(t.Context(), WorkerConfig{URL: server.URL, Token: "catd_x", Owner: "w", In: in, Out: out})
	}()
	read := json.NewDecoder(receipts)
	for _, want := range []receipt{
		{Outcome: outcomeSkipped},
		{Error: "POST /v1/attempts: 409 key_collision: one key stands for one identity"},
	} {
		var got receipt
		if err := json.NewEncoder(queue).Encode(delivery{Collection: "demo", Tile: "a"}); err != nil {
			t.Fatal(err)
		}
		if err := read.Decode(&got); err != nil || got != want {
			t.Errorf("receipt is %+v (%v), want %+v", got, err, want)
		}
	}
	queue.Close()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(asked) != 5 || asked[0] != asked[1] || asked[1] != asked[2] || len(slices.Compact(asked)) != 3 {
		t.Errorf("request ids are %q", asked)
	}
}

// When its queue is gone a worker ends, even one that has no answer.
func TestWorkerEndsWithItsQueue(t *testing.T) {
	in := strings.NewReader(`{"collection": "demo", "tile": "a"}`)
	if err := Work(t.Context(), WorkerConfig{URL: "http://127.0.0.1:1", In: in, Out: io.Discard}); err != nil {
		t.Fatal(err)
	}
	if err := Work(t.Context(), WorkerConfig{In: strings.NewReader("no JSON"), Out: io.Discard}); err == nil {
		t.Error("a worker understood no JSON")
	}
}
