// Package docs holds what of the documentation the server tells. It imports nothing.
package docs

import _ "embed"

// Problems is problems.md.
//
//go:embed problems.md
var Problems string
