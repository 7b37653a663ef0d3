package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
)

// Store is what the catalogue keeps of a store: see the comments of
// catalog.stores.
type Store struct {
	ID, Root, Location, Href string
}

// StoreUnder finds the id of the store that was last used under a root, "" for
// none, and tells whether the catalogue has any store.
func (db *DB) StoreUnder(ctx context.Context, root string) (id string, some bool, err error) {
	err = db.pool.QueryRow(ctx, `SELECT coalesce(max(store_id) FILTER (WHERE root = @root), ''), count(*) > 0 FROM catalog.stores`,
		pgx.StrictNamedArgs{"root": root}).Scan(&id, &some)
	return id, some, problem("look a store up", err)
}

// UseStore records a store, or that it moved to another root or URL, and makes
// it the one of new collections. A root belongs to one store. It is called before
// the server serves.
func (db *DB) UseStore(ctx context.Context, s Store) error {
	_, err := db.pool.Exec(ctx, `
INSERT INTO catalog.stores (store_id, root, location, href) VALUES (@id, @root, @location, @href)
ON CONFLICT ON CONSTRAINT stores_pkey DO UPDATE SET root = EXCLUDED.root, location = EXCLUDED.location, href = EXCLUDED.href
WHERE (stores.root, stores.location, stores.href) IS DISTINCT FROM (EXCLUDED.root, EXCLUDED.location, EXCLUDED.href)`,
		pgx.StrictNamedArgs{"id": s.ID, "root": s.Root, "location": s.Location, "href": s.Href})
	if violates(err, "stores_root_key") {
		return catalog.Errorf(catalog.CodeStoreUnavailable, "%s is known as another store than %s: is another volume mounted there?", s.Root, s.ID)
	}
	db.store, db.stores = s.ID, append(db.stores, s.ID)
	return problem("record a store", err)
}
