// Package bench measures the server, as it is run, against the same durable acts
// done by hand in the same run: see docs/benchmarks.md. It has tests only, and needs
// bin/catalogd, which make bench builds.
package bench
