package httpapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"

	"catalogd/api"
	"catalogd/internal/catalog"
)

// operation is one operation of the contract.
type operation struct {
	id string
	// role that a caller needs; "" for an operation that is open to all.
	role catalog.Role
	// streaming operations read their bodies themselves.
	streaming bool
	// identity tells whether the body has a member identity, which the domain
	// reads and the contract does not.
	identity bool
	deadline time.Duration
	body     *openapi3.RequestBody
	route    *routers.Route
}

// dataPattern is where the router has /data/{name}.
const dataPattern = "/data/*"

// Operations that may take long; streams have no deadline at all.
var long = map[string]bool{
	"completeAttempt": true, "registerOutput": true, "publishVersion": true, "publishBatch": true, "recover": true, "sweep": true,
	"planReconcile": true, "emptyTrash": true, "restoreTrashed": true,
}

// document is the contract, read once.
var document = sync.OnceValue(func() *openapi3.T {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		panic(fmt.Errorf("read api/openapi.yaml: %w", err))
	}
	return doc
})

// contract lists the operations by method and the router's pattern. An
// operation that does not say whom it serves is a mistake that stops the
// program.
var contract = sync.OnceValue(func() map[string]*operation {
	doc := document()
	operations := map[string]*operation{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			role, ok := op.Extensions["x-role"].(string)
			if !ok || role != "open" && !catalog.RoleAdmin.Allows(catalog.Role(role)) {
				panic(fmt.Sprintf("api/openapi.yaml: %s %s has no x-role of open, read, write or admin", method, path))
			}
			o := &operation{
				id:       op.OperationID,
				deadline: requestDeadline,
				route:    &routers.Route{Spec: doc, Path: path, PathItem: item, Method: method, Operation: op},
			}
			if role != "open" {
				o.role = catalog.Role(role)
			}
			o.streaming, _ = op.Extensions["x-streaming"].(bool)
			if long[o.id] {
				o.deadline = stepDeadline
			}
			if op.RequestBody != nil {
				o.body = op.RequestBody.Value
				if schema := o.schema(); schema != nil {
					_, o.identity = schema.Properties["identity"]
				}
			}
			pattern := path
			if path == "/data/{name}" {
				pattern = dataPattern
			}
			operations[method+" "+pattern] = o
		}
	}
	return operations
})

// schema of the JSON body; nil where there is none.
func (o *operation) schema() *openapi3.Schema {
	if o.body == nil {
		return nil
	}
	if content := o.body.Content["application/json"]; content != nil {
		return content.Schema.Value
	}
	return nil
}

// parameters that the contract describes and the router does not read in a way
// of its own.
func (o *operation) parameters() openapi3.Parameters {
	if strings.HasPrefix(o.route.Path, "/data/") {
		return nil
	}
	return append(slices.Clip(o.route.PathItem.Parameters), o.route.Operation.Parameters...)
}

// within gives ctx the operation's deadline. Streams bound what they do piece
// by piece.
func (o *operation) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if o.streaming {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, o.deadline, fmt.Errorf("%s took longer than %s", o.id, o.deadline))
}
