// Package client is catalogd seen from a task: it speaks the HTTP of
// api/openapi.yaml, runs a command as one attempt at a unit of work (Exec), and
// hands files over (Put).
//
// Its rule: an answer that did not come is an unknown outcome, and the same request
// is sent again, which every request of the step allows. It imports the domain and
// nothing else of the product, so that it goes into the image of any worker.
package client
