// Package catalog is the domain: units and their keys, collections, attempts,
// outputs and the errors that everything else speaks in.
//
// It holds no behaviour that needs a database, a store or a network, and
// imports the standard library, go-geom, jcs and uuid only.
package catalog
