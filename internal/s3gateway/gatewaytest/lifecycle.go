package gatewaytest

import (
	"io"
	"net/http"
	"sync"
)

// KeepLifecycle gives the line lifecycle rules, which the gateway has not: what is put
// at ?lifecycle is kept, and given back; first document, none where that is "". All else
// reaches the gateway.
func (l *Line) KeepLifecycle(document string) {
	var mu sync.Mutex
	l.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if !r.URL.Query().Has("lifecycle") {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Method == http.MethodPut:
			text, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			document = string(text)
		case document == "":
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "<Error><Code>NoSuchLifecycleConfiguration</Code></Error>")
		default:
			_, _ = io.WriteString(w, document)
		}
		return true
	})
}
