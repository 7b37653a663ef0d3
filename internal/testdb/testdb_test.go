package testdb_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/testdb"
)

func TestNew(t *testing.T) {
	for range 8 {
		t.Run("a test/with a long name, ünd odd characters", func(t *testing.T) {
			t.Parallel()
			conn, err := pgx.Connect(t.Context(), testdb.New(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			// Each has the tables, and none has another's rows.
			if _, err := conn.Exec(t.Context(), `CREATE TABLE catalog.only_here ()`); err != nil {
				t.Error(err)
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	testdb.New(b) // the template
	for b.Loop() {
		testdb.New(b)
	}
}
