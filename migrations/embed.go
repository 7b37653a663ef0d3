// Package migrations holds the schema as numbered steps, NNNN_name.up.sql and
// NNNN_name.down.sql. Each runs in one transaction together with the record of
// its version (see internal/postgres), so none may begin, commit, or use what
// cannot run in a transaction (CREATE INDEX CONCURRENTLY).
package migrations

import "embed"

// FS holds every migration.
//
//go:embed *.sql
var FS embed.FS
