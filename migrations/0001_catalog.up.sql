-- The catalogue: what the step, history, rank, tokens and audit need.
-- Locks: creates only; nothing that exists is touched.

CREATE EXTENSION IF NOT EXISTS postgis;

-- Roles belong to the cluster, not to this database: another catalogue, or a
-- parallel migration, may have made them already.
-- Where both exist, the right to create roles is not needed.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['catalog_reader', 'catalog_server'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
    END LOOP;
END $$;

CREATE SCHEMA catalog;
COMMENT ON SCHEMA catalog IS 'catalogd: a catalogue of the rasters that batch pipelines write. Analysts: use the views, role catalog_reader.';

-- Versions are ranked, and units of one version ordered, by these: gaps mean nothing.
CREATE SEQUENCE catalog.version_rank;
COMMENT ON SEQUENCE catalog.version_rank IS 'Ranks for collection_versions; a higher rank wins a slot.';

CREATE TABLE catalog.stores (
    store_id    text        NOT NULL CONSTRAINT stores_pkey PRIMARY KEY,
    root        text        NOT NULL,
    location    text        NOT NULL,
    href        text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT stores_root_key UNIQUE (root)
);
COMMENT ON TABLE  catalog.stores IS 'Roots under which outputs live.';
COMMENT ON COLUMN catalog.stores.store_id IS 'The id in the store''s sentinel, .catalogd/store.json.';
COMMENT ON COLUMN catalog.stores.root IS 'URI of the root: file:///…';
COMMENT ON COLUMN catalog.stores.location IS 'What stands before an object key to make what GDAL opens, with its closing slash.';
COMMENT ON COLUMN catalog.stores.href IS 'What stands before an object key to make its URL, with its closing slash.';
COMMENT ON COLUMN catalog.stores.created_at IS 'When catalogd first used this store.';

CREATE TABLE catalog.collections (
    collection_id      text        COLLATE "C" NOT NULL CONSTRAINT collections_pkey PRIMARY KEY,
    title              text        NOT NULL DEFAULT '',
    description        text        NOT NULL DEFAULT '',
    license            text        NOT NULL DEFAULT 'other',
    store_id           text        NOT NULL CONSTRAINT collections_store_id_fkey REFERENCES catalog.stores,
    media_type         text        NOT NULL,
    order_by           text        NOT NULL DEFAULT 'version',
    sparse_allowed     boolean     NOT NULL DEFAULT false,
    footprint_optional boolean     NOT NULL DEFAULT false,
    decode_always      boolean     NOT NULL DEFAULT false,
    staging_copied     boolean     NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT collections_collection_id_check CHECK (collection_id ~ '^[a-z0-9][a-z0-9_-]*$' AND collection_id <> 'current' AND octet_length(collection_id) <= 64),
    CONSTRAINT collections_order_by_check CHECK (order_by IN ('version', 'acquired'))
);
COMMENT ON TABLE  catalog.collections IS 'Families of outputs, each with one policy.';
COMMENT ON COLUMN catalog.collections.collection_id IS 'Id; also the first directory of its outputs.';
COMMENT ON COLUMN catalog.collections.title IS 'A short title for people.';
COMMENT ON COLUMN catalog.collections.description IS 'What the collection holds.';
COMMENT ON COLUMN catalog.collections.license IS 'SPDX identifier, or "other".';
COMMENT ON COLUMN catalog.collections.store_id IS 'The store its new outputs go to.';
COMMENT ON COLUMN catalog.collections.media_type IS 'Media type of outputs whose begin names none; gives names their extension.';
COMMENT ON COLUMN catalog.collections.order_by IS 'What makes an output current: version (its rank) or acquired (its time).';
COMMENT ON COLUMN catalog.collections.sparse_allowed IS 'TIFFs with blocks that were never written are taken.';
COMMENT ON COLUMN catalog.collections.footprint_optional IS 'Rasters without a WGS 84 footprint are taken.';
COMMENT ON COLUMN catalog.collections.decode_always IS 'Every block is decoded as proof of completeness.';
COMMENT ON COLUMN catalog.collections.staging_copied IS 'catalogd promotes its own copy of what was staged: for writers that are not trusted.';
COMMENT ON COLUMN catalog.collections.created_at IS 'When the collection was created.';
COMMENT ON COLUMN catalog.collections.updated_at IS 'When its policy last changed.';

CREATE TABLE catalog.collection_versions (
    collection_id text        COLLATE "C" NOT NULL CONSTRAINT collection_versions_collection_id_fkey REFERENCES catalog.collections,
    version       text        COLLATE "C" NOT NULL,
    rank          bigint      NOT NULL DEFAULT nextval('catalog.version_rank'),
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    publishing    boolean     NOT NULL DEFAULT false,
    CONSTRAINT collection_versions_pkey PRIMARY KEY (collection_id, version)
);
COMMENT ON TABLE  catalog.collection_versions IS 'The rank of each version in its collection, given at its first begin and by publish; never pruned.';
COMMENT ON COLUMN catalog.collection_versions.collection_id IS 'Collection.';
COMMENT ON COLUMN catalog.collection_versions.version IS 'Version, a member of the identity.';
COMMENT ON COLUMN catalog.collection_versions.rank IS 'Of two outputs in one slot, the one whose version ranks higher is current.';
COMMENT ON COLUMN catalog.collection_versions.first_seen_at IS 'When the version was first begun.';
COMMENT ON COLUMN catalog.collection_versions.publishing IS 'publish gave the rank and has not yet moved every slot; recovery finishes it.';

CREATE TABLE catalog.units (
    unit_key      uuid        NOT NULL CONSTRAINT units_pkey PRIMARY KEY,
    collection_id text        COLLATE "C" NOT NULL CONSTRAINT units_collection_id_fkey REFERENCES catalog.collections,
    tile_id       text        COLLATE "C" NOT NULL,
    version       text        COLLATE "C" NOT NULL,
    identity      jsonb       NOT NULL,
    client_key    text        COLLATE "C",
    seq           bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT units_client_key_key UNIQUE (collection_id, client_key)
);
CREATE INDEX units_slot_idx ON catalog.units (collection_id, tile_id);
COMMENT ON TABLE  catalog.units IS 'Pieces of work that were ever begun: what each key stands for.';
COMMENT ON COLUMN catalog.units.unit_key IS 'UUIDv8 from SHA-256 over the canonical JSON of collection, identity and tile id.';
COMMENT ON COLUMN catalog.units.collection_id IS 'Collection.';
COMMENT ON COLUMN catalog.units.tile_id IS 'Place of the output in its collection.';
COMMENT ON COLUMN catalog.units.version IS 'The identity''s version.';
COMMENT ON COLUMN catalog.units.identity IS 'Everything that decides the bytes.';
COMMENT ON COLUMN catalog.units.client_key IS 'The pipeline''s own key, if it has one; stands for one identity only.';
COMMENT ON COLUMN catalog.units.seq IS 'Order of first sight: within a version, the later unit wins the slot.';
COMMENT ON COLUMN catalog.units.first_seen_at IS 'When the unit was first begun.';

CREATE TABLE catalog.tiles (
    unit_key       uuid             NOT NULL CONSTRAINT tiles_pkey PRIMARY KEY CONSTRAINT tiles_unit_key_fkey REFERENCES catalog.units,
    collection_id  text             COLLATE "C" NOT NULL,
    tile_id        text             COLLATE "C" NOT NULL,
    store_id       text             NOT NULL,
    object_key     text             COLLATE "C" NOT NULL,
    size_bytes     bigint           NOT NULL,
    checksum       text             NOT NULL,
    etag           text             NOT NULL,
    media_type     text             NOT NULL,
    driver         text             NOT NULL,
    is_cog         boolean          NOT NULL,
    footprint      geometry(MultiPolygon, 4326),
    crs            text,
    transform      float8[]         NOT NULL,
    width          integer          NOT NULL,
    height         integer          NOT NULL,
    bands          jsonb            NOT NULL,
    acquired_start timestamptz,
    acquired_end   timestamptz,
    properties     jsonb            NOT NULL DEFAULT '{}',
    attempt_id     uuid             NOT NULL,
    batch_id       uuid,
    registered_at  timestamptz      NOT NULL,
    published_at   timestamptz,
    withdrawn_at   timestamptz,
    CONSTRAINT tiles_object_key_key UNIQUE (store_id, object_key),
    CONSTRAINT tiles_size_bytes_check CHECK (size_bytes > 0),
    CONSTRAINT tiles_checksum_check CHECK (checksum ~ '^sha256:[0-9a-f]{64}$'),
    CONSTRAINT tiles_transform_check CHECK (cardinality(transform) = 6),
    CONSTRAINT tiles_acquired_check CHECK (acquired_start <= acquired_end)
);
CREATE INDEX tiles_slot_idx ON catalog.tiles (collection_id, tile_id);
CREATE INDEX tiles_footprint_idx ON catalog.tiles USING gist (footprint);
COMMENT ON TABLE  catalog.tiles IS 'Outputs. A row says that its object is complete, durable, and of this size and checksum.';
COMMENT ON COLUMN catalog.tiles.unit_key IS 'The unit whose output this is.';
COMMENT ON COLUMN catalog.tiles.collection_id IS 'Collection.';
COMMENT ON COLUMN catalog.tiles.tile_id IS 'Place of the output in its collection.';
COMMENT ON COLUMN catalog.tiles.store_id IS 'Store that holds the object.';
COMMENT ON COLUMN catalog.tiles.object_key IS 'Final name below the store''s root, written once.';
COMMENT ON COLUMN catalog.tiles.size_bytes IS 'Size of the object, bytes.';
COMMENT ON COLUMN catalog.tiles.checksum IS 'algorithm:value; sha256 and 64 hexadecimal digits.';
COMMENT ON COLUMN catalog.tiles.etag IS 'What the store calls this state of the object.';
COMMENT ON COLUMN catalog.tiles.media_type IS 'Media type.';
COMMENT ON COLUMN catalog.tiles.driver IS 'GDAL''s short name of the format.';
COMMENT ON COLUMN catalog.tiles.is_cog IS 'Whether it is a cloud-optimized GeoTIFF.';
COMMENT ON COLUMN catalog.tiles.footprint IS 'True outline in WGS 84, split at the antimeridian; null where the collection takes rasters without.';
COMMENT ON COLUMN catalog.tiles.crs IS 'EPSG:n where it is exactly that, else WKT2; null for none.';
COMMENT ON COLUMN catalog.tiles.transform IS 'GDAL geotransform, six numbers in GDAL''s order, units of the CRS.';
COMMENT ON COLUMN catalog.tiles.width IS 'Pixels across.';
COMMENT ON COLUMN catalog.tiles.height IS 'Pixels down.';
COMMENT ON COLUMN catalog.tiles.bands IS 'Array of {data_type, nodata, …}, one a band.';
COMMENT ON COLUMN catalog.tiles.acquired_start IS 'Start of acquisition: from the task, else from tags.';
COMMENT ON COLUMN catalog.tiles.acquired_end IS 'End of acquisition.';
COMMENT ON COLUMN catalog.tiles.properties IS 'What the task said of its output.';
COMMENT ON COLUMN catalog.tiles.attempt_id IS 'The attempt that made it.';
COMMENT ON COLUMN catalog.tiles.batch_id IS 'The batch it was begun for.';
COMMENT ON COLUMN catalog.tiles.registered_at IS 'When the row was written, under the slot''s lock.';
COMMENT ON COLUMN catalog.tiles.published_at IS 'When it could first become current.';
COMMENT ON COLUMN catalog.tiles.withdrawn_at IS 'When an operator took it back; it is not redone by itself.';

-- ⚗ Narrow on purpose: marking a tile lost or verified in tiles itself would
-- write the wide row and every index entry again, five times the WAL.
CREATE TABLE catalog.tile_health (
    unit_key    uuid        NOT NULL CONSTRAINT tile_health_pkey PRIMARY KEY
                CONSTRAINT tile_health_unit_key_fkey REFERENCES catalog.tiles ON DELETE CASCADE,
    lost_since  timestamptz,
    verified_at timestamptz
);
COMMENT ON TABLE  catalog.tile_health IS 'What was last seen of an output''s object; no row for one that was never looked at.';
COMMENT ON COLUMN catalog.tile_health.unit_key IS 'Unit.';
COMMENT ON COLUMN catalog.tile_health.lost_since IS 'When the object was found missing; null when it is there.';
COMMENT ON COLUMN catalog.tile_health.verified_at IS 'When the object was last seen to be right.';

CREATE TABLE catalog.slots (
    collection_id text        COLLATE "C" NOT NULL CONSTRAINT slots_collection_id_fkey REFERENCES catalog.collections,
    tile_id       text        COLLATE "C" NOT NULL,
    unit_key      uuid        CONSTRAINT slots_unit_key_fkey REFERENCES catalog.tiles,
    fid           bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT slots_pkey PRIMARY KEY (collection_id, tile_id)
) WITH (fillfactor = 90);
COMMENT ON TABLE  catalog.slots IS 'The pointer: which output of a place is current. Locked while the step writes.';
COMMENT ON COLUMN catalog.slots.collection_id IS 'Collection.';
COMMENT ON COLUMN catalog.slots.tile_id IS 'Place in the collection.';
COMMENT ON COLUMN catalog.slots.unit_key IS 'The current output''s unit; null before the first.';
COMMENT ON COLUMN catalog.slots.fid IS 'Integer key for desktop GIS.';
COMMENT ON COLUMN catalog.slots.updated_at IS 'When the pointer last moved.';

CREATE TABLE catalog.slot_history (
    id            bigint      NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT slot_history_pkey PRIMARY KEY,
    collection_id text        COLLATE "C" NOT NULL,
    tile_id       text        COLLATE "C" NOT NULL,
    from_unit     uuid,
    to_unit       uuid,
    moved_by      text        NOT NULL,
    reason        text        NOT NULL,
    moved_at      timestamptz NOT NULL
);
CREATE INDEX slot_history_slot_idx ON catalog.slot_history (collection_id, tile_id, id);
COMMENT ON TABLE  catalog.slot_history IS 'Every move of a slot''s pointer.';
COMMENT ON COLUMN catalog.slot_history.id IS 'Order of the moves.';
COMMENT ON COLUMN catalog.slot_history.collection_id IS 'Collection.';
COMMENT ON COLUMN catalog.slot_history.tile_id IS 'Place in the collection.';
COMMENT ON COLUMN catalog.slot_history.from_unit IS 'What was current before; null for nothing.';
COMMENT ON COLUMN catalog.slot_history.to_unit IS 'What became current.';
COMMENT ON COLUMN catalog.slot_history.moved_by IS 'Owner of the attempt, or who published.';
COMMENT ON COLUMN catalog.slot_history.reason IS 'registered or published.';
COMMENT ON COLUMN catalog.slot_history.moved_at IS 'When, under the slot''s lock.';

CREATE TABLE catalog.attempts (
    attempt_id    uuid        NOT NULL CONSTRAINT attempts_pkey PRIMARY KEY,
    unit_key      uuid        NOT NULL CONSTRAINT attempts_unit_key_fkey REFERENCES catalog.units,
    request_id    text        NOT NULL,
    owner         text        NOT NULL,
    try           integer     NOT NULL,
    state         text        NOT NULL,
    store_id      text        NOT NULL,
    media_type    text        NOT NULL,
    staging_key   text        COLLATE "C" NOT NULL,
    object_key    text        COLLATE "C" NOT NULL,
    replaces      uuid,
    given         jsonb       NOT NULL DEFAULT '{}',
    intent        jsonb,
    lease_until   timestamptz NOT NULL,
    error_code    text,
    error_message text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at      timestamptz,
    swept_at      timestamptz,
    CONSTRAINT attempts_request_id_key UNIQUE (unit_key, owner, request_id),
    CONSTRAINT attempts_object_key_key UNIQUE (store_id, object_key),
    CONSTRAINT attempts_state_check CHECK (state IN ('open', 'promoting', 'done', 'overtaken', 'failed', 'abandoned', 'expired', 'replaced')),
    CONSTRAINT attempts_intent_check CHECK ((state = 'promoting') = (intent IS NOT NULL)),
    CONSTRAINT attempts_ended_at_check CHECK ((state IN ('open', 'promoting')) = (ended_at IS NULL))
) WITH (fillfactor = 80);
-- One attempt holds a unit, by construction; units of one slot do not exclude one another.
CREATE UNIQUE INDEX attempts_holder_key ON catalog.attempts (unit_key) WHERE state IN ('open', 'promoting');
-- One attempt holds a staged file.
CREATE UNIQUE INDEX attempts_staging_key ON catalog.attempts (store_id, staging_key) WHERE state IN ('open', 'promoting');
-- What recovery looks for, what sweep looks for.
CREATE INDEX attempts_promoting_idx ON catalog.attempts (lease_until) WHERE state = 'promoting';
CREATE INDEX attempts_open_idx ON catalog.attempts (lease_until) WHERE state = 'open';
CREATE INDEX attempts_unswept_idx ON catalog.attempts (ended_at) WHERE swept_at IS NULL AND state IN ('overtaken', 'failed', 'abandoned', 'expired', 'replaced');
CREATE INDEX attempts_ended_at_idx ON catalog.attempts (ended_at);
COMMENT ON TABLE  catalog.attempts IS 'Tries at units. An open or promoting attempt holds its unit and covers its object.';
COMMENT ON COLUMN catalog.attempts.attempt_id IS 'UUIDv7, compared by equality only.';
COMMENT ON COLUMN catalog.attempts.unit_key IS 'Unit.';
COMMENT ON COLUMN catalog.attempts.request_id IS 'Of the task''s making: a begin that its owner replays finds its attempt by it.';
COMMENT ON COLUMN catalog.attempts.owner IS 'Who works on it.';
COMMENT ON COLUMN catalog.attempts.try IS 'Which try of that owner: a higher one takes over.';
COMMENT ON COLUMN catalog.attempts.state IS 'open, promoting; or ended: done, overtaken, failed, abandoned, expired, replaced.';
COMMENT ON COLUMN catalog.attempts.store_id IS 'Store it writes to.';
COMMENT ON COLUMN catalog.attempts.media_type IS 'Media type announced at begin.';
COMMENT ON COLUMN catalog.attempts.staging_key IS 'Where the task writes.';
COMMENT ON COLUMN catalog.attempts.object_key IS 'Its own final name, that no other attempt can have.';
COMMENT ON COLUMN catalog.attempts.replaces IS 'The attempt of the row whose object was found missing, and that alone may be replaced.';
COMMENT ON COLUMN catalog.attempts.given IS 'Acquisition time and properties given at begin.';
COMMENT ON COLUMN catalog.attempts.intent IS 'The whole future row, while promoting.';
COMMENT ON COLUMN catalog.attempts.lease_until IS 'End of the lease; while promoting, of the step''s deadline.';
COMMENT ON COLUMN catalog.attempts.error_code IS 'Why it ended without becoming a row.';
COMMENT ON COLUMN catalog.attempts.error_message IS 'The same in words.';
COMMENT ON COLUMN catalog.attempts.created_at IS 'When it began.';
COMMENT ON COLUMN catalog.attempts.ended_at IS 'When it ended.';
COMMENT ON COLUMN catalog.attempts.swept_at IS 'When what it left behind was removed.';

CREATE TABLE catalog.failures (
    attempt_id    uuid        NOT NULL CONSTRAINT failures_pkey PRIMARY KEY,
    unit_key      uuid        NOT NULL,
    collection_id text        COLLATE "C" NOT NULL,
    tile_id       text        COLLATE "C" NOT NULL,
    class         text,
    reason        text        NOT NULL,
    message       text        NOT NULL DEFAULT '',
    worker        text        NOT NULL,
    failed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT failures_class_check CHECK (class IN ('transient', 'deterministic'))
);
CREATE INDEX failures_unit_key_idx ON catalog.failures (unit_key);
COMMENT ON TABLE  catalog.failures IS 'What tasks and the step reported as failed, once per attempt; append-only.';
COMMENT ON COLUMN catalog.failures.attempt_id IS 'The attempt that failed.';
COMMENT ON COLUMN catalog.failures.unit_key IS 'Unit.';
COMMENT ON COLUMN catalog.failures.collection_id IS 'Collection.';
COMMENT ON COLUMN catalog.failures.tile_id IS 'Place in the collection.';
COMMENT ON COLUMN catalog.failures.class IS 'transient or deterministic; null when nobody said.';
COMMENT ON COLUMN catalog.failures.reason IS 'Short and stable: an error code, an exception name, http_503.';
COMMENT ON COLUMN catalog.failures.message IS 'Text for people.';
COMMENT ON COLUMN catalog.failures.worker IS 'Owner of the attempt.';
COMMENT ON COLUMN catalog.failures.failed_at IS 'When it was reported.';

CREATE TABLE catalog.removals (
    id           bigint      NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT removals_pkey PRIMARY KEY,
    store_id     text        NOT NULL,
    object_key   text        COLLATE "C" NOT NULL,
    reason       text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    confirmed_at timestamptz
);
CREATE INDEX removals_open_idx ON catalog.removals (store_id, object_key) WHERE confirmed_at IS NULL;
COMMENT ON TABLE  catalog.removals IS 'Intents to delete: an object named here is covered until its removal is confirmed.';
COMMENT ON COLUMN catalog.removals.id IS 'Order.';
COMMENT ON COLUMN catalog.removals.store_id IS 'Store.';
COMMENT ON COLUMN catalog.removals.object_key IS 'Object to delete.';
COMMENT ON COLUMN catalog.removals.reason IS 'Why.';
COMMENT ON COLUMN catalog.removals.created_at IS 'When it was decided.';
COMMENT ON COLUMN catalog.removals.confirmed_at IS 'When the object was gone.';

CREATE TABLE catalog.audit (
    id      bigint      NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT audit_pkey PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    who     text        NOT NULL,
    act     text        NOT NULL,
    target  text        NOT NULL,
    why     text        NOT NULL DEFAULT '',
    details jsonb       NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE  catalog.audit IS 'Acts that destroy or turn back.';
COMMENT ON COLUMN catalog.audit.id IS 'Order.';
COMMENT ON COLUMN catalog.audit.at IS 'When.';
COMMENT ON COLUMN catalog.audit.who IS 'Name of the token, or the program itself.';
COMMENT ON COLUMN catalog.audit.act IS 'What was done.';
COMMENT ON COLUMN catalog.audit.target IS 'To what.';
COMMENT ON COLUMN catalog.audit.why IS 'The reason given.';
COMMENT ON COLUMN catalog.audit.details IS 'Figures.';

CREATE TABLE catalog.tokens (
    name       text        NOT NULL CONSTRAINT tokens_pkey PRIMARY KEY,
    role       text        NOT NULL,
    hash       bytea       NOT NULL CONSTRAINT tokens_hash_key UNIQUE,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT tokens_role_check CHECK (role IN ('read', 'write', 'admin'))
);
COMMENT ON TABLE  catalog.tokens IS 'Bearer tokens, hashed.';
COMMENT ON COLUMN catalog.tokens.name IS 'Who has it, for ever; written to audit.';
COMMENT ON COLUMN catalog.tokens.role IS 'read, write or admin; each includes those before it.';
COMMENT ON COLUMN catalog.tokens.hash IS 'SHA-256 of the token, which is 256 random bits.';
COMMENT ON COLUMN catalog.tokens.created_at IS 'When it was made.';
COMMENT ON COLUMN catalog.tokens.expires_at IS 'When it stops working; null for never.';
COMMENT ON COLUMN catalog.tokens.revoked_at IS 'When it was revoked.';

-- One place says how an output looks to an analyst; the views differ in which
-- outputs they show, and when.
CREATE VIEW catalog.outputs AS
SELECT t.unit_key, t.collection_id AS collection, t.tile_id, u.version,
       s.location || t.object_key AS location, s.href || t.object_key AS href,
       t.media_type, t.is_cog, t.size_bytes, t.checksum,
       CASE WHEN t.crs ~ '^EPSG:[0-9]+$' THEN substr(t.crs, 6)::integer END AS epsg,
       sqrt(t.transform[2]^2 + t.transform[5]^2) AS res_x,
       sqrt(t.transform[3]^2 + t.transform[6]^2) AS res_y,
       t.width, t.height, jsonb_array_length(t.bands) AS band_count,
       t.bands -> 0 ->> 'data_type' AS dtype, t.bands -> 0 ->> 'nodata' AS nodata,
       t.acquired_start, t.acquired_end, t.registered_at, t.batch_id AS batch,
       h.lost_since, t.withdrawn_at, t.properties, u.identity, t.footprint AS geom
FROM catalog.tiles t
JOIN catalog.units u USING (unit_key)
JOIN catalog.stores s USING (store_id)
LEFT JOIN catalog.tile_health h USING (unit_key);
COMMENT ON VIEW catalog.outputs IS 'Every output, current or not, as analysts see it; what current_tiles and tile_history are made of.';

CREATE VIEW catalog.current_tiles AS
SELECT c.fid, o.collection, o.tile_id, o.version, o.unit_key, o.location, o.href, o.media_type, o.is_cog,
       o.size_bytes, o.checksum, o.epsg, o.res_x, o.res_y, o.width, o.height, o.band_count, o.dtype, o.nodata,
       o.acquired_start, o.acquired_end, o.registered_at, o.batch, o.lost_since, o.properties, o.geom
FROM catalog.slots c
JOIN catalog.outputs o USING (unit_key);
COMMENT ON VIEW catalog.current_tiles IS 'The current output of every place.';

CREATE VIEW catalog.tile_history AS
SELECT m.id AS fid, o.collection, o.tile_id, o.version, o.unit_key, o.location, o.href, o.media_type, o.is_cog,
       o.size_bytes, o.checksum, o.epsg, o.res_x, o.res_y, o.width, o.height, o.band_count, o.dtype, o.nodata,
       o.acquired_start, o.acquired_end, o.registered_at, o.batch, o.lost_since, o.properties, o.geom,
       m.moved_at AS valid_from, m.valid_to, m.superseded_by
FROM (SELECT id, to_unit, moved_at,
             lead(moved_at) OVER slot AS valid_to,
             lead(to_unit)  OVER slot AS superseded_by
      FROM catalog.slot_history
      WINDOW slot AS (PARTITION BY collection_id, tile_id ORDER BY id)) m
JOIN catalog.outputs o ON o.unit_key = m.to_unit;
COMMENT ON VIEW catalog.tile_history IS 'Which output of a place was current from when to when, and what superseded it.';

-- SECURITY INVOKER would ask for rights on the tables behind the view; a view
-- runs with its owner's, and so does this, which reads a view only.
CREATE FUNCTION catalog.tiles_as_of(collection text, at timestamptz)
RETURNS SETOF catalog.tile_history
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT h.* FROM catalog.tile_history h
    WHERE h.collection = tiles_as_of.collection
      AND h.valid_from <= tiles_as_of.at
      AND (h.valid_to IS NULL OR h.valid_to > tiles_as_of.at);
END;
COMMENT ON FUNCTION catalog.tiles_as_of(text, timestamptz) IS 'What a reader would have seen as current in a collection at a moment.';

-- A view's columns take the comments of what they show.
DO $$
DECLARE
    described record;
BEGIN
    FOR described IN
        SELECT v.view, c.name, c.comment
        FROM (VALUES
            ('fid', 'Integer key for desktop GIS.'),
            ('collection', 'Collection.'),
            ('tile_id', 'Place of the output in its collection.'),
            ('version', 'Version of what made it.'),
            ('unit_key', 'Key of the unit whose output it is.'),
            ('location', 'What GDAL opens: a path.'),
            ('href', 'URL of the bytes.'),
            ('media_type', 'Media type.'),
            ('is_cog', 'Whether it is a cloud-optimized GeoTIFF.'),
            ('size_bytes', 'Size, bytes.'),
            ('checksum', 'algorithm:value.'),
            ('epsg', 'EPSG code of the CRS; null where it has none.'),
            ('res_x', 'Size of a pixel along a row, units of the CRS.'),
            ('res_y', 'Size of a pixel along a column, units of the CRS.'),
            ('width', 'Pixels across.'),
            ('height', 'Pixels down.'),
            ('band_count', 'Number of bands.'),
            ('dtype', 'GDAL data type of the first band.'),
            ('nodata', 'Nodata value of the first band, as text.'),
            ('acquired_start', 'Start of acquisition.'),
            ('acquired_end', 'End of acquisition.'),
            ('registered_at', 'When the row was written.'),
            ('batch', 'Batch it was begun for.'),
            ('lost_since', 'When its object was found missing; null when it is there.'),
            ('withdrawn_at', 'When an operator took it back.'),
            ('properties', 'What the task said of it.'),
            ('identity', 'Everything that decided the bytes.'),
            ('geom', 'Outline in WGS 84.'),
            ('valid_from', 'When it became current.'),
            ('valid_to', 'When it stopped being current; null while it is.'),
            ('superseded_by', 'Unit that became current after it.')) c (name, comment)
        JOIN (VALUES ('outputs'), ('current_tiles'), ('tile_history')) v (view) ON true
        JOIN information_schema.columns i
          ON i.table_schema = 'catalog' AND i.table_name = v.view AND i.column_name = c.name
    LOOP
        EXECUTE format('COMMENT ON COLUMN catalog.%I.%I IS %L', described.view, described.name, described.comment);
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION catalog.tiles_as_of(text, timestamptz) FROM PUBLIC;
GRANT USAGE ON SCHEMA catalog TO catalog_reader, catalog_server;
GRANT SELECT ON catalog.outputs, catalog.current_tiles, catalog.tile_history TO catalog_reader, catalog_server;
GRANT EXECUTE ON FUNCTION catalog.tiles_as_of(text, timestamptz) TO catalog_reader, catalog_server;
GRANT USAGE ON SEQUENCE catalog.version_rank TO catalog_server;
GRANT SELECT, INSERT, UPDATE, DELETE ON
    catalog.stores, catalog.collections, catalog.collection_versions, catalog.units, catalog.tiles,
    catalog.tile_health, catalog.slots, catalog.attempts, catalog.removals, catalog.tokens TO catalog_server;
GRANT SELECT, INSERT ON catalog.slot_history, catalog.failures, catalog.audit TO catalog_server;
