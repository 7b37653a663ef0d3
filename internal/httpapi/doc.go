// Package httpapi serves the contract, api/openapi.yaml, over HTTP: it turns
// requests into calls on the step and the catalogue, and their errors into
// RFC 9457 problems.
//
// It upholds that every operation in the contract says whom it serves, that
// nothing reaches a handler before its token was looked at and its request held
// against the contract, and that no text of an error which catalogd does not
// know reaches a client. Identities pass through as the bytes that were sent.
//
// Bodies are read whole, and bounded, except those of operations marked
// x-streaming, which are never held in memory.
//
// It imports catalog, storage and upsert's types; it never sees SQL or a store's
// SDK.
package httpapi
