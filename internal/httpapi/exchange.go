package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"

	"catalogd/internal/catalog"
)

// exchange is what is known of one request while it is served. Only the
// goroutine that serves it touches it.
type exchange struct {
	id   string
	base string
	// op is nil for a request that no operation of the contract matches.
	op *operation
	// who is the name of the token; "" for none.
	who string
	// accept is what the client wants to be answered with.
	accept string
	// err is what the log should say of a problem.
	err error
	// stream is the body of a streaming operation; nil if there is none.
	stream *patientBody
	// duplex tells that the answer may begin before the stream has ended.
	duplex bool
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{}
}

// operationID for logs and metrics.
func (x *exchange) operationID() string {
	if x.op == nil {
		return "none"
	}
	return x.op.id
}

var requestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// observe surrounds every request: it gives it an id (the client's own, if that
// is fit for a log), turns a panic into a problem, counts, and logs one line.
func (s *server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		x := &exchange{id: r.Header.Get("X-Request-Id"), base: s.base(r), accept: r.Header.Get("Accept")}
		if !requestID.MatchString(x.id) {
			x.id = uuid.NewString()
		}
		// The last request on this connection may have left a deadline.
		rc := http.NewResponseController(w)
		_ = rc.SetWriteDeadline(time.Time{})
		if r.ContentLength != 0 {
			// Whoever wants the body gives it more time. Without a body there must be no
			// deadline: the server watches the connection by reading from it.
			_ = rc.SetReadDeadline(time.Now().Add(unread))
		}
		w.Header().Set("X-Request-Id", x.id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		seen := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))

		defer func() {
			aborted := false
			if v := recover(); v != nil {
				if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					aborted = true
				} else {
					s.problem(seen, r, fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
				}
			}
			s.record(x, r, seen, time.Since(start))
			if aborted {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(seen, r)
		if x.stream != nil && x.stream.err == nil {
			_ = rc.SetReadDeadline(time.Now().Add(unread)) // for the rest, which nobody wants
		}
		if x.duplex && !errors.Is(x.stream.err, io.EOF) {
			closeAfterReply(w)
		}
	})
}

// closeAfterReply closes the connection once the answer is out. ⚗ net/http does so by
// itself where a body was not read to its end, except in full duplex: there it would take
// what is left of the body for the next request. A bound that is exceeded tells it.
func closeAfterReply(w http.ResponseWriter) {
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
}

func (s *server) record(x *exchange, r *http.Request, w middleware.WrapResponseWriter, took time.Duration) {
	status := w.Status()
	if status == 0 {
		status = http.StatusOK
	}
	s.metrics.observe(x.operationID(), status, took)

	level := slog.LevelInfo
	switch {
	case status >= 500:
		level = slog.LevelError
	case x.op != nil && x.op.role == "":
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String("request", x.id),
		slog.String("operation", x.operationID()),
		slog.String("method", r.Method),
		slog.String("path", r.URL.Path),
		slog.Int("status", status),
		slog.Int("bytes", w.BytesWritten()),
		slog.Duration("took", took),
		slog.String("remote", r.RemoteAddr),
	}
	if x.who != "" {
		attrs = append(attrs, slog.String("token", x.who))
	}
	if x.err != nil {
		attrs = append(attrs, slog.String("code", string(catalog.CodeOf(x.err))), slog.Any("error", x.err))
	}
	s.Logger.LogAttrs(r.Context(), level, "request", attrs...)
}

// base is what links start with.
func (s *server) base(r *http.Request) string {
	if s.PublicURL != "" {
		return s.PublicURL
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}
