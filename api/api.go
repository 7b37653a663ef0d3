// Package api holds the contract of catalogd's HTTP interface. It imports
// nothing.
package api

import _ "embed"

// OpenAPI is the contract: openapi.yaml, OpenAPI 3.0.3.
//
//go:embed openapi.yaml
var OpenAPI []byte

//go:generate go tool oapi-codegen -config oapi-codegen.yaml openapi.yaml
