package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
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
	// err is what the log should say of a problem.
	err error
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
		x := &exchange{id: r.Header.Get("X-Request-Id"), base: s.base(r)}
		if !requestID.MatchString(x.id) {
			x.id = uuid.NewString()
		}
		// The last request on this connection may have left a deadline.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
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
	})
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
