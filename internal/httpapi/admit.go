package httpapi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"catalogd/internal/catalog"
)

// admit stands before every operation: who calls, then what they sent. The body
// that a handler reads is, to the byte, the one that was sent.
func (s *server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := exchangeOf(r.Context())
		route := chi.RouteContext(r.Context())
		x.op = s.contract[route.RouteMethod+" "+route.RoutePattern()]
		if x.op == nil {
			s.problem(w, r, fmt.Errorf("%s %s is routed but not in the contract", route.RouteMethod, route.RoutePattern()))
			return
		}
		var err error
		if x.who, err = s.authorize(r, x.op); err != nil {
			s.problem(w, r, err)
			return
		}
		ctx, cancel := x.op.within(r.Context())
		defer cancel()
		r = r.WithContext(ctx)
		if !x.op.streaming {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(x.op.deadline + idle))
		}
		if err := x.op.checkParameters(r, route); err != nil {
			s.problem(w, r, err)
			return
		}
		if err := x.op.checkBody(w, r); err != nil {
			s.problem(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkParameters holds path and query against the contract.
func (o *operation) checkParameters(r *http.Request, route *chi.Context) error {
	for name, values := range r.URL.Query() {
		for _, value := range values {
			switch {
			case strings.ContainsRune(value, 0):
				return catalog.Errorf(catalog.CodeInvalidRequest, "the parameter holds a NUL character: remove it").At(name)
			case !utf8.ValidString(value):
				return catalog.Errorf(catalog.CodeInvalidRequest, "the parameter is not UTF-8: encode it so").At(name)
			}
		}
	}
	params := map[string]string{}
	for i, name := range route.URLParams.Keys {
		value := route.URLParams.Values[i]
		if r.URL.RawPath != "" {
			if unescaped, err := url.PathUnescape(value); err == nil {
				value = unescaped
			}
		}
		params[name] = value
	}
	input := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: o.route,
		Options: &openapi3filter.Options{SchemaValidationOptions: formats},
	}
	// ⚗ Not ValidateRequest: even told to leave the body out, it reads all of it.
	for _, p := range o.parameters() {
		if err := openapi3filter.ValidateParameter(r.Context(), input, p.Value); err != nil {
			return catalog.Errorf(catalog.CodeInvalidRequest, "parameter %s: %s", p.Value.Name, reason(err)).At(p.Value.Name).Because(err)
		}
	}
	return nil
}

// checkBody holds the body against the contract and puts it back as it was. A
// streaming operation's own code reads its body.
func (o *operation) checkBody(w http.ResponseWriter, r *http.Request) error {
	if o.body == nil {
		return nil
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return catalog.Errorf(catalog.CodeUnsupportedType, "content encoding %q is not taken: send the body as it is", encoding).At("Content-Encoding")
	}
	contentType := r.Header.Get("Content-Type")
	if contentType == "" && r.ContentLength == 0 && !o.body.Required {
		return nil
	}
	mediaType, err := o.checkMediaType(contentType)
	if err != nil {
		return err
	}
	rc := http.NewResponseController(w)
	if o.streaming {
		stream := &patientBody{ReadCloser: r.Body, rc: rc}
		exchangeOf(r.Context()).stream, r.Body = stream, stream
		if mediaType == "application/json" {
			// Buffered: the generated code looks for the first byte one by one.
			units := &unitCounter{r: http.MaxBytesReader(w, r.Body, maxCheckBody)}
			r.Body = struct {
				io.Reader
				io.Closer
			}{bufio.NewReader(units), r.Body}
		}
		return nil
	}
	_ = rc.SetReadDeadline(time.Now().Add(requestDeadline))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return err
	case err != nil:
		return catalog.Errorf(catalog.CodeInvalidRequest, "the body broke off after %d bytes", len(body)).Because(err)
	}
	_ = rc.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(body))

	if len(bytes.TrimSpace(body)) == 0 && !o.body.Required {
		return nil
	}
	value, err := readJSON(body, o.identity)
	if err != nil {
		return err
	}
	if err := o.schema().VisitJSON(value, formats...); err != nil {
		return schemaProblem(err)
	}
	return nil
}

// checkMediaType refuses a Content-Type that the operation does not list, and
// gives it without its parameters.
func (o *operation) checkMediaType(contentType string) (string, error) {
	if o.body.Content["*/*"] != nil {
		return contentType, nil
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err == nil && o.body.Content[mediaType] != nil {
		return mediaType, nil
	}
	var taken []string
	for name := range o.body.Content {
		taken = append(taken, name)
	}
	slices.Sort(taken)
	return "", catalog.Errorf(catalog.CodeUnsupportedType, "content type %q is not taken here: send %s", contentType, strings.Join(taken, " or ")).At("Content-Type")
}

// formats are those of the contract that its schemas do not spell out.
var formats = []openapi3.SchemaValidationOption{
	openapi3.WithStringFormatValidator("uuid", openapi3.NewCallbackValidator(func(text string) error {
		if len(text) != 36 || uuid.Validate(text) != nil {
			return errors.New("not a UUID, as in 0198c1de-7a3b-7c52-9d0f-0123456789ab")
		}
		return nil
	})),
	openapi3.WithStringFormatValidator("date-time", openapi3.NewCallbackValidator(func(text string) error {
		if _, err := time.Parse(time.RFC3339, text); err != nil {
			return errors.New("not an RFC 3339 time, as in 2026-08-04T10:30:00Z")
		}
		return nil
	})),
	openapi3.EnableFormatValidation(),
}

// schemaProblemOf finds what one of the contract's schemas refuses in raw, which
// is JSON; otherwise is what decoding said.
func schemaProblemOf(schema string, raw []byte, otherwise error) error {
	value, err := readJSON(raw, true)
	if err != nil {
		return err
	}
	if err := document().Components.Schemas[schema].Value.VisitJSON(value, formats...); err != nil {
		return schemaProblem(err)
	}
	return badJSON(otherwise)
}

// schemaProblem names the first thing in a body that the contract refuses.
func schemaProblem(err error) error {
	e := catalog.Errorf(catalog.CodeInvalidRequest, "%s", reason(err)).Because(err)
	var schema *openapi3.SchemaError
	if errors.As(err, &schema) {
		at := schema.JSONPointer()
		if unknown := unsupported.FindStringSubmatch(e.Message); unknown != nil && schema.Schema != nil {
			at = append(at, unknown[1])
			e.Message += ": there are " + strings.Join(slices.Sorted(maps.Keys(schema.Schema.Properties)), ", ")
		}
		e = e.At(pointer(at))
	}
	return e
}

var unsupported = regexp.MustCompile(`^property "(.*)" is unsupported$`)

// reason is the validator's, without the value or the schema that it repeats.
func reason(err error) string {
	var schema *openapi3.SchemaError
	if errors.As(err, &schema) {
		if schema.Origin != nil {
			return schema.Origin.Error()
		}
		return schema.Reason
	}
	var refused *openapi3filter.RequestError
	if errors.As(err, &refused) {
		switch {
		case errors.Is(err, openapi3filter.ErrInvalidRequired):
			return "is missing"
		case refused.Reason != "":
			return refused.Reason
		}
	}
	return "not what the contract says; see /openapi.yaml"
}

// badParameter is for what the generated binding refuses after the contract
// took it.
func badParameter(err error) error {
	var format *InvalidParamFormatError
	if errors.As(err, &format) {
		return catalog.Errorf(catalog.CodeInvalidRequest, "parameter %s is not what the contract says; see /openapi.yaml", format.ParamName).At(format.ParamName).Because(err)
	}
	return catalog.Errorf(catalog.CodeInvalidRequest, "a parameter is not what the contract says; see /openapi.yaml").Because(err)
}

// badBody is for what decoding refuses after the contract took it, and for the
// bodies that are decoded without it.
func badBody(err error) error {
	var tooLarge *http.MaxBytesError
	var domain *catalog.Error
	if errors.As(err, &tooLarge) || errors.As(err, &domain) {
		return err
	}
	return badJSON(err)
}
