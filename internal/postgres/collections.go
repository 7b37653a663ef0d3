package postgres

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
)

const (
	selectCollection = `
SELECT c.collection_id, c.title, c.description, c.license, c.store_id, c.media_type,
       c.drivers, c.order_by, c.sparse_allowed, c.footprint_optional, c.decode_always, c.staging_copied,
       c.max_retries, c.retry_base_seconds, c.retry_cap_seconds, c.max_expiries, c.failure_rules, c.publish, c.outage_frac, c.created_at, c.updated_at
FROM catalog.collections c`
	collectionWhere  = ` WHERE c.collection_id = @collection`
	insertCollection = `
INSERT INTO catalog.collections (collection_id, title, description, license, store_id, media_type,
                                 drivers, order_by, sparse_allowed, footprint_optional, decode_always, staging_copied,
                                 max_retries, retry_base_seconds, retry_cap_seconds, max_expiries, failure_rules, publish, outage_frac)
VALUES (@collection, @title, @description, @license, @store, @media_type,
        coalesce(@drivers::text[], '{GTiff}'), @order_by, @sparse, @footprint, @decode, @copied,
        @max_retries, @retry_base, @retry_cap, @max_expiries, @rules, @publish, @outage_frac)`
	updateCollection = `
UPDATE catalog.collections
SET title = @title, description = @description, license = @license, store_id = coalesce(nullif(@store, ''), store_id), media_type = @media_type,
    drivers = coalesce(@drivers::text[], '{GTiff}'), order_by = @order_by, sparse_allowed = @sparse, footprint_optional = @footprint, decode_always = @decode,
    staging_copied = @copied, max_retries = @max_retries, retry_base_seconds = @retry_base, retry_cap_seconds = @retry_cap,
    max_expiries = @max_expiries, failure_rules = @rules, publish = @publish, outage_frac = @outage_frac, updated_at = clock_timestamp()
WHERE collection_id = @collection
  AND (order_by = @order_by OR NOT EXISTS (SELECT FROM catalog.units WHERE collection_id = @collection))`
)

func scanCollection(row pgx.CollectableRow) (catalog.Collection, error) {
	var c catalog.Collection
	retry := &c.Policy.Retry
	var base, limit float64
	err := row.Scan(&c.ID, &c.Title, &c.Description, &c.License, &c.StoreID, &c.MediaType,
		&c.Policy.Drivers, &c.Policy.OrderBy, &c.Policy.SparseAllowed, &c.Policy.FootprintOptional, &c.Policy.DecodeAlways, &c.Policy.StagingCopied,
		&retry.MaxRetries, &base, &limit, &retry.MaxExpiries, &retry.Rules, &c.Policy.Publish, &retry.OutageFrac, &c.CreatedAt, &c.UpdatedAt)
	retry.Base, retry.Cap = seconds(base), seconds(limit)
	return c, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func collectionArgs(c catalog.Collection) pgx.StrictNamedArgs {
	retry := c.Policy.Retry.OrDefault()
	if retry.Rules == nil {
		retry.Rules = []catalog.FailureRule{}
	}
	return pgx.StrictNamedArgs{
		"collection": c.ID, "title": c.Title, "description": c.Description, "license": c.License, "store": c.StoreID,
		"media_type": c.MediaType, "drivers": c.Policy.Drivers, "order_by": c.Policy.OrderBy, "sparse": c.Policy.SparseAllowed,
		"footprint": c.Policy.FootprintOptional, "decode": c.Policy.DecodeAlways, "copied": c.Policy.StagingCopied,
		"max_retries": retry.MaxRetries, "retry_base": retry.Base.Seconds(), "retry_cap": retry.Cap.Seconds(),
		"max_expiries": retry.MaxExpiries, "rules": retry.Rules,
		"publish": cmp.Or(c.Policy.Publish, catalog.PublishOnRegister), "outage_frac": retry.OutageFrac,
	}
}

// Collections lists all, by id.
func (db *DB) Collections(ctx context.Context) ([]catalog.Collection, error) {
	rows, err := db.pool.Query(ctx, selectCollection+` ORDER BY c.collection_id`)
	if err != nil {
		return nil, problem("list collections", err)
	}
	all, err := pgx.CollectRows(rows, scanCollection)
	for i := range all {
		all[i].Store = db.storeName(all[i].StoreID)
	}
	return all, problem("list collections", err)
}

// Collection reads one. CodeUnknownCollection.
func (db *DB) Collection(ctx context.Context, id string) (catalog.Collection, error) {
	rows, err := db.pool.Query(ctx, selectCollection+collectionWhere, pgx.StrictNamedArgs{"collection": id})
	if err != nil {
		return catalog.Collection{}, problem("read a collection", err)
	}
	c, err := pgx.CollectExactlyOneRow(rows, scanCollection)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, catalog.Errorf(catalog.CodeUnknownCollection, "there is no collection %q: create it with POST /v1/collections", id)
	}
	c.Store = db.storeName(c.StoreID)
	return c, problem("read a collection", err)
}

// CreateCollection makes a collection; one that names no store gets this
// server's first. CodeCollectionExists.
func (db *DB) CreateCollection(ctx context.Context, c catalog.Collection) (catalog.Collection, error) {
	c.StoreID = db.storeID(c.Store)
	_, err := db.pool.Exec(ctx, insertCollection, collectionArgs(c))
	if violates(err, "collections_pkey") {
		return c, catalog.Errorf(catalog.CodeCollectionExists, "there is a collection %q already: change it with PUT /v1/collections/%s", c.ID, c.ID).At("/id")
	}
	if err != nil {
		return c, unknownStore(c, problem("create a collection", err))
	}
	return db.Collection(ctx, c.ID)
}

func unknownStore(c catalog.Collection, err error) error {
	if violates(err, "collections_store_id_fkey") {
		return catalog.Errorf(catalog.CodeInvalidCollection, "there is no store %q: GET /v1/stores lists those of this server; leave store out for its first", c.Store).At("/store")
	}
	return err
}

// UpdateCollection sets everything but the id, and keeps the store where it
// names none. What makes an output current is settled with the first unit.
// CodeUnknownCollection, CodeCollectionNotEmpty.
func (db *DB) UpdateCollection(ctx context.Context, c catalog.Collection) (catalog.Collection, error) {
	if c.StoreID = ""; c.Store != "" {
		c.StoreID = db.storeID(c.Store)
	}
	tag, err := db.pool.Exec(ctx, updateCollection, collectionArgs(c))
	if err != nil {
		return c, unknownStore(c, problem("change a collection", err))
	}
	now, err := db.Collection(ctx, c.ID)
	if err == nil && tag.RowsAffected() == 0 {
		return now, catalog.Errorf(catalog.CodeCollectionNotEmpty, "collection %s has units, whose order by %s is settled: make another collection to order by %s", c.ID, now.Policy.OrderBy, c.Policy.OrderBy).At("/order_by")
	}
	return now, err
}

// A collection that nothing was ever begun in can go; the foreign keys of units
// and slots see to the rest.
const deleteCollection = `
WITH versions AS (
    DELETE FROM catalog.collection_versions WHERE collection_id = @collection
), gone AS (
    DELETE FROM catalog.collections WHERE collection_id = @collection RETURNING collection_id
), audited AS (
    INSERT INTO catalog.audit (who, act, target, why) SELECT @who, 'delete collection', collection_id, @why FROM gone
)
SELECT count(*) FROM gone`

// DeleteCollection removes an empty one. CodeUnknownCollection,
// CodeCollectionNotEmpty.
func (db *DB) DeleteCollection(ctx context.Context, id, who, why string) error {
	var gone int
	err := db.pool.QueryRow(ctx, deleteCollection, pgx.StrictNamedArgs{"collection": id, "who": who, "why": why}).Scan(&gone)
	switch {
	case sqlState(err) == "23503":
		return catalog.Errorf(catalog.CodeCollectionNotEmpty, "collection %q has units: only an empty collection can be deleted", id)
	case err != nil:
		return problem("delete a collection", err)
	case gone == 0:
		return catalog.Errorf(catalog.CodeUnknownCollection, "there is no collection %q", id)
	}
	return nil
}
