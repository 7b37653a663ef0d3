// Package gatewaytest starts an S3 gateway that ends with the test. It is for tests
// only, and imports s3gateway.
package gatewaytest

import (
	"crypto/rand"
	"strings"
	"testing"

	"catalogd/internal/s3gateway"
)

// Start starts a gateway on a directory of the test's own.
func Start(t testing.TB, args ...string) *s3gateway.Gateway {
	t.Helper()
	g, err := s3gateway.Start(t.Context(), s3gateway.Options{Dir: t.TempDir(), Args: args})
	if err != nil {
		t.Fatalf("gatewaytest: %v", err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Errorf("gatewaytest: %v", err)
		}
	})
	return g
}

// Bucket makes a bucket of the test's own.
func Bucket(t testing.TB, g *s3gateway.Gateway) string {
	t.Helper()
	name := "b" + strings.ToLower(rand.Text())
	if err := g.CreateBucket(t.Context(), name); err != nil {
		t.Fatalf("gatewaytest: make a bucket: %v", err)
	}
	return name
}
