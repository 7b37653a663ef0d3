package s3gateway_test

import (
	"testing"

	"catalogd/internal/s3gateway/gatewaytest"
)

func TestStart(t *testing.T) {
	g := gatewaytest.Start(t)
	bucket := gatewaytest.Bucket(t, g)
	if err := g.Version(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	if _, err := g.CreateUser(t.Context(), "someone"); err != nil {
		t.Fatal(err)
	}
}
