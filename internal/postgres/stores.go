package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
)

// Store is what the catalogue keeps of a store (see the comments of catalog.stores),
// and the name that this server's settings give it.
type Store struct {
	ID, Root, Location, Href string
	Name                     string
}

// Stores are all that the catalogue knows.
func (db *DB) Stores(ctx context.Context) ([]Store, error) {
	rows, err := db.pool.Query(ctx, `SELECT store_id, root, location, href FROM catalog.stores ORDER BY created_at`)
	if err != nil {
		return nil, problem("list stores", err)
	}
	stores, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Store, err error) {
		err = row.Scan(&s.ID, &s.Root, &s.Location, &s.Href)
		return s, err
	})
	return stores, problem("list stores", err)
}

// UseStore records a store, or that it moved to another root or URL. The first is that
// of collections which name none. A root belongs to one store. It is called before the
// server serves.
func (db *DB) UseStore(ctx context.Context, s Store) error {
	_, err := db.pool.Exec(ctx, `
INSERT INTO catalog.stores (store_id, root, location, href) VALUES (@id, @root, @location, @href)
ON CONFLICT ON CONSTRAINT stores_pkey DO UPDATE SET root = EXCLUDED.root, location = EXCLUDED.location, href = EXCLUDED.href
WHERE (stores.root, stores.location, stores.href) IS DISTINCT FROM (EXCLUDED.root, EXCLUDED.location, EXCLUDED.href)`,
		pgx.StrictNamedArgs{"id": s.ID, "root": s.Root, "location": s.Location, "href": s.Href})
	if violates(err, "stores_root_key") {
		return catalog.Errorf(catalog.CodeStoreUnavailable, "%s is known as another store than %s: is another volume mounted there?", s.Root, s.ID)
	}
	db.stores, db.names = append(db.stores, s.ID), append(db.names, s.Name)
	return problem("record a store", err)
}

// storeID is that of a store which is named, or given by its id; of the first for "".
func (db *DB) storeID(store string) string {
	for i, id := range db.stores {
		if store == "" || store == db.names[i] {
			return id
		}
	}
	return store
}

// storeName is the name of a store, or its id where this server has none for it.
func (db *DB) storeName(id string) string {
	for i, known := range db.stores {
		if id == known && db.names[i] != "" {
			return db.names[i]
		}
	}
	return id
}
