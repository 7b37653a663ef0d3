// Package upsert is the step: it turns a staged raster into a promoted object
// and a committed row, or into neither, however often and by however many it is
// tried.
//
// It upholds the invariants of docs/design.md. It sees the database, the stores
// and the probe through the small interfaces of ports.go, and imports catalog
// and storage only.
package upsert
