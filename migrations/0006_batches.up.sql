-- Batches of expected units: what is due of them, and how they were judged.
-- Locks: ACCESS EXCLUSIVE on collections, attempts and retries, for the moment that it
-- takes to change their definitions: no row is rewritten. The two indexes on them, and one
-- on tiles, are built while writers wait: that reads each table once.

ALTER TABLE catalog.collections
    ADD COLUMN publish     text   NOT NULL DEFAULT 'on_register',
    ADD COLUMN outage_frac float8 NOT NULL DEFAULT 0.05,
    ADD CONSTRAINT collections_publish_check CHECK (publish IN ('on_register', 'on_gate')),
    ADD CONSTRAINT collections_outage_frac_check CHECK (outage_frac >= 0 AND outage_frac <= 1);
COMMENT ON COLUMN catalog.collections.publish IS 'When an output can become current: on_register, or on_gate, together with those of its batch.';
COMMENT ON COLUMN catalog.collections.outage_frac IS 'Share of a batch above which units that fail for one transient reason spend no tries: that is nothing of theirs.';

CREATE TABLE catalog.batches (
    batch_id      uuid        NOT NULL CONSTRAINT batches_pkey PRIMARY KEY,
    name          text        COLLATE "C" NOT NULL CONSTRAINT batches_name_key UNIQUE,
    collection_id text        COLLATE "C" NOT NULL CONSTRAINT batches_collection_id_fkey REFERENCES catalog.collections,
    expected      bigint      NOT NULL DEFAULT 0,
    versions      text[]      NOT NULL DEFAULT '{}',
    created_by    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at  timestamptz,
    links_from    bigint,
    CONSTRAINT batches_name_check CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._:+@=-]*$' AND octet_length(name) <= 200)
) WITH (fillfactor = 80);
CREATE INDEX batches_collection_id_idx ON catalog.batches (collection_id);
COMMENT ON TABLE  catalog.batches IS 'Sets of expected units of one collection, each judged together.';
COMMENT ON COLUMN catalog.batches.batch_id IS 'UUIDv7.';
COMMENT ON COLUMN catalog.batches.name IS 'What people and pipelines call it.';
COMMENT ON COLUMN catalog.batches.collection_id IS 'Collection.';
COMMENT ON COLUMN catalog.batches.expected IS 'How many units it has.';
COMMENT ON COLUMN catalog.batches.versions IS 'Versions of its units, in alphabetical order; one, as a rule.';
COMMENT ON COLUMN catalog.batches.created_by IS 'Name of the token that made it.';
COMMENT ON COLUMN catalog.batches.created_at IS 'When it was opened.';
COMMENT ON COLUMN catalog.batches.published_at IS 'When its outputs last became current together; null where they never did, or did each by itself.';
COMMENT ON COLUMN catalog.batches.links_from IS 'Id of the first move of its publication, while stable names of what moved are still to be put right; null where all are right.';

CREATE TABLE catalog.batch_units (
    batch_id uuid NOT NULL CONSTRAINT batch_units_batch_id_fkey REFERENCES catalog.batches ON DELETE CASCADE,
    unit_key uuid NOT NULL CONSTRAINT batch_units_unit_key_fkey REFERENCES catalog.units,
    due_at   timestamptz,
    geom     geometry(Geometry, 4326),
    CONSTRAINT batch_units_pkey PRIMARY KEY (batch_id, unit_key)
) WITH (fillfactor = 80);
-- What a claim takes first; the batches of a unit.
CREATE INDEX batch_units_due_idx ON catalog.batch_units (batch_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX batch_units_unit_key_idx ON catalog.batch_units (unit_key);
COMMENT ON TABLE  catalog.batch_units IS 'Units that batches expect, and when a claim looks at each again.';
COMMENT ON COLUMN catalog.batch_units.batch_id IS 'Batch.';
COMMENT ON COLUMN catalog.batch_units.unit_key IS 'Unit.';
COMMENT ON COLUMN catalog.batch_units.due_at IS 'From when on a claim looks at it. Only a hint: whether it is due is for its row, its attempts and its failures to say. Null once it is done or quarantined.';
COMMENT ON COLUMN catalog.batch_units.geom IS 'Where its output is to be, in WGS 84, so that holes can be mapped; null where nobody said.';

ALTER TABLE catalog.attempts ADD COLUMN batch_id uuid;
COMMENT ON COLUMN catalog.attempts.batch_id IS 'The batch it was begun for.';
-- The leases of an owner, and of one request of his.
CREATE INDEX attempts_owner_idx ON catalog.attempts (owner, request_id) WHERE state = 'open';

ALTER TABLE catalog.retries ADD COLUMN batch_id uuid;
COMMENT ON COLUMN catalog.retries.batch_id IS 'The batch that its last attempt was begun for.';
-- How many units of a batch fail for one reason.
CREATE INDEX retries_batch_idx ON catalog.retries (batch_id, reason) WHERE batch_id IS NOT NULL;

-- Outputs that wait for their batch.
CREATE INDEX tiles_unpublished_idx ON catalog.tiles (unit_key) WHERE published_at IS NULL;

CREATE TABLE catalog.gates (
    gate_id          uuid        NOT NULL CONSTRAINT gates_pkey PRIMARY KEY,
    batch_id         uuid        NOT NULL CONSTRAINT gates_batch_id_fkey REFERENCES catalog.batches ON DELETE CASCADE,
    state            text        NOT NULL,
    max_missing_frac float8      NOT NULL,
    max_quarantined  bigint,
    storage          text        NOT NULL,
    sample_size      bigint,
    reasons          text[]      NOT NULL DEFAULT '{}',
    figures          jsonb       NOT NULL DEFAULT '{}',
    offenders        jsonb       NOT NULL DEFAULT '[]',
    error_code       text,
    error_message    text,
    asked_by         text        NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    ended_at         timestamptz,
    notified_at      timestamptz,
    CONSTRAINT gates_state_check CHECK (state IN ('queued', 'running', 'passed', 'failed', 'error')),
    CONSTRAINT gates_storage_check CHECK (storage IN ('list', 'sample', 'none')),
    CONSTRAINT gates_ended_at_check CHECK ((state IN ('queued', 'running')) = (ended_at IS NULL))
);
CREATE INDEX gates_batch_id_idx ON catalog.gates (batch_id, created_at DESC);
COMMENT ON TABLE  catalog.gates IS 'Judgements of batches.';
COMMENT ON COLUMN catalog.gates.gate_id IS 'UUIDv7; the id of its notification too.';
COMMENT ON COLUMN catalog.gates.batch_id IS 'Batch.';
COMMENT ON COLUMN catalog.gates.state IS 'queued, running; or ended: passed, failed, error (it could not be judged).';
COMMENT ON COLUMN catalog.gates.max_missing_frac IS 'Share of the expected units that may be missing.';
COMMENT ON COLUMN catalog.gates.max_quarantined IS 'How many may be quarantined; null for as many as may be missing.';
COMMENT ON COLUMN catalog.gates.storage IS 'What was compared with the store: list (every object), sample, none.';
COMMENT ON COLUMN catalog.gates.sample_size IS 'How many objects a sample looks at.';
COMMENT ON COLUMN catalog.gates.reasons IS 'Why it failed: too_many_missing, too_many_quarantined, disagreement, empty.';
COMMENT ON COLUMN catalog.gates.figures IS '{expected, done, running, retrying, quarantined, lost, pending, missing, missing_frac, outputs, looked_at}.';
COMMENT ON COLUMN catalog.gates.offenders IS 'Array of {unit_key, tile_id, status, reason}: units that are missing, a thousand at most, lost ones first.';
COMMENT ON COLUMN catalog.gates.error_code IS 'Why it could not be judged.';
COMMENT ON COLUMN catalog.gates.error_message IS 'The same in words.';
COMMENT ON COLUMN catalog.gates.asked_by IS 'Name of the token that asked for it.';
COMMENT ON COLUMN catalog.gates.created_at IS 'When it was asked for.';
COMMENT ON COLUMN catalog.gates.started_at IS 'When judging began.';
COMMENT ON COLUMN catalog.gates.ended_at IS 'When it ended.';
COMMENT ON COLUMN catalog.gates.notified_at IS 'When its notification was taken; null where there was none to send.';

CREATE TABLE catalog.batch_counts (
    batch_id    uuid        NOT NULL CONSTRAINT batch_counts_pkey PRIMARY KEY CONSTRAINT batch_counts_batch_id_fkey REFERENCES catalog.batches ON DELETE CASCADE,
    expected    bigint      NOT NULL,
    done        bigint      NOT NULL,
    running     bigint      NOT NULL,
    retrying    bigint      NOT NULL,
    quarantined bigint      NOT NULL,
    lost        bigint      NOT NULL,
    pending     bigint      NOT NULL,
    counted_at  timestamptz NOT NULL,
    took        interval    NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE  catalog.batch_counts IS 'How batches stood when they were last counted: what metrics are read from.';
COMMENT ON COLUMN catalog.batch_counts.batch_id IS 'Batch.';
COMMENT ON COLUMN catalog.batch_counts.expected IS 'Units.';
COMMENT ON COLUMN catalog.batch_counts.done IS 'Those with an output.';
COMMENT ON COLUMN catalog.batch_counts.running IS 'Those that are being worked on.';
COMMENT ON COLUMN catalog.batch_counts.retrying IS 'Those that failed and are tried again.';
COMMENT ON COLUMN catalog.batch_counts.quarantined IS 'Those that are not to be tried.';
COMMENT ON COLUMN catalog.batch_counts.lost IS 'Those whose output was found missing.';
COMMENT ON COLUMN catalog.batch_counts.pending IS 'The rest: never tried, or given up.';
COMMENT ON COLUMN catalog.batch_counts.counted_at IS 'When.';
COMMENT ON COLUMN catalog.batch_counts.took IS 'How long counting took: the longer, the less often.';

-- One place says how a unit of a batch stands.
CREATE VIEW catalog.batch_unit_status AS
SELECT b.batch_id, b.unit_key, b.due_at, b.geom, t.object_key, t.store_id, t.registered_at, t.published_at, r.due_at AS retry_at, r.reason, t.attempt_id, t.size_bytes,
       CASE WHEN t.withdrawn_at IS NOT NULL THEN 'quarantined'
            WHEN a.unit_key IS NOT NULL THEN 'running'
            WHEN t.unit_key IS NOT NULL AND h.lost_since IS NULL THEN 'done'
            WHEN r.quarantined_as IS NOT NULL THEN 'quarantined'
            WHEN t.unit_key IS NOT NULL THEN 'lost'
            WHEN r.unit_key IS NOT NULL THEN 'retrying'
            ELSE 'pending' END AS status
FROM catalog.batch_units b
LEFT JOIN catalog.tiles t ON t.unit_key = b.unit_key
LEFT JOIN catalog.tile_health h ON h.unit_key = b.unit_key
LEFT JOIN catalog.attempts a ON a.unit_key = b.unit_key AND a.state IN ('open', 'promoting')
                            AND (a.state = 'promoting' OR a.lease_until >= statement_timestamp())
LEFT JOIN catalog.retries r ON r.unit_key = b.unit_key;
COMMENT ON VIEW   catalog.batch_unit_status IS 'How each unit of each batch stands.';
COMMENT ON COLUMN catalog.batch_unit_status.batch_id IS 'Batch.';
COMMENT ON COLUMN catalog.batch_unit_status.unit_key IS 'Unit.';
COMMENT ON COLUMN catalog.batch_unit_status.due_at IS 'From when on a claim looks at it.';
COMMENT ON COLUMN catalog.batch_unit_status.geom IS 'Where its output is to be, in WGS 84.';
COMMENT ON COLUMN catalog.batch_unit_status.object_key IS 'Name of its output; null while it has none.';
COMMENT ON COLUMN catalog.batch_unit_status.store_id IS 'Store of its output.';
COMMENT ON COLUMN catalog.batch_unit_status.registered_at IS 'When its output was registered.';
COMMENT ON COLUMN catalog.batch_unit_status.published_at IS 'When its output could first become current; null while it waits for its batch.';
COMMENT ON COLUMN catalog.batch_unit_status.retry_at IS 'When one that failed is due again.';
COMMENT ON COLUMN catalog.batch_unit_status.reason IS 'Of its last failure.';
COMMENT ON COLUMN catalog.batch_unit_status.attempt_id IS 'Attempt that made its output.';
COMMENT ON COLUMN catalog.batch_unit_status.size_bytes IS 'Size of its output.';
COMMENT ON COLUMN catalog.batch_unit_status.status IS 'done; running; retrying (failed, and tried again); quarantined; lost (its output was found missing); pending.';

CREATE VIEW catalog.batch_progress AS
SELECT b.name AS batch, b.collection_id AS collection, array_to_string(b.versions, ', ') AS version,
       n.expected, n.done, n.running, n.retrying, n.quarantined, n.lost, n.pending,
       round(100.0 * n.done / nullif(n.expected, 0), 1) AS pct_done,
       round(n.lately / 10.0, 1) AS rate_per_min,
       statement_timestamp() + nullif(n.expected - n.done - n.quarantined, 0) * interval '10 minutes' / nullif(n.lately, 0) AS eta,
       g.state AS verdict, g.ended_at AS gate_at, b.created_at AS opened_at, b.published_at
FROM catalog.batches b
CROSS JOIN LATERAL (
    SELECT count(*) AS expected,
           count(*) FILTER (WHERE status = 'done') AS done,
           count(*) FILTER (WHERE status = 'running') AS running,
           count(*) FILTER (WHERE status = 'retrying') AS retrying,
           count(*) FILTER (WHERE status = 'quarantined') AS quarantined,
           count(*) FILTER (WHERE status = 'lost') AS lost,
           count(*) FILTER (WHERE status = 'pending') AS pending,
           count(*) FILTER (WHERE status = 'done' AND registered_at > statement_timestamp() - interval '10 minutes') AS lately
    FROM catalog.batch_unit_status s WHERE s.batch_id = b.batch_id) n
LEFT JOIN LATERAL (
    SELECT g.state, g.ended_at FROM catalog.gates g WHERE g.batch_id = b.batch_id AND g.ended_at IS NOT NULL ORDER BY g.created_at DESC LIMIT 1) g ON true;
COMMENT ON VIEW   catalog.batch_progress IS 'How far each batch is.';
COMMENT ON COLUMN catalog.batch_progress.batch IS 'Its name.';
COMMENT ON COLUMN catalog.batch_progress.collection IS 'Collection.';
COMMENT ON COLUMN catalog.batch_progress.version IS 'Version of its units; several are joined by commas.';
COMMENT ON COLUMN catalog.batch_progress.expected IS 'Units.';
COMMENT ON COLUMN catalog.batch_progress.done IS 'Those with an output.';
COMMENT ON COLUMN catalog.batch_progress.running IS 'Those that are being worked on.';
COMMENT ON COLUMN catalog.batch_progress.retrying IS 'Those that failed and are tried again.';
COMMENT ON COLUMN catalog.batch_progress.quarantined IS 'Those that are not to be tried until somebody releases them.';
COMMENT ON COLUMN catalog.batch_progress.lost IS 'Those whose output was found missing.';
COMMENT ON COLUMN catalog.batch_progress.pending IS 'The rest: never tried, or given up.';
COMMENT ON COLUMN catalog.batch_progress.pct_done IS 'Done, per cent of the expected; null where nothing is expected.';
COMMENT ON COLUMN catalog.batch_progress.rate_per_min IS 'Outputs a minute, over the last ten.';
COMMENT ON COLUMN catalog.batch_progress.eta IS 'When the rest would be done at that rate; null where nothing is left to do, or nothing was done lately.';
COMMENT ON COLUMN catalog.batch_progress.verdict IS 'Of the last gate: passed, failed, error; null where none was run.';
COMMENT ON COLUMN catalog.batch_progress.gate_at IS 'When the last gate ended.';
COMMENT ON COLUMN catalog.batch_progress.opened_at IS 'When it was opened.';
COMMENT ON COLUMN catalog.batch_progress.published_at IS 'When its outputs became current together.';

-- A batch goes by its name in views.
DROP VIEW catalog.quarantined_units;
CREATE VIEW catalog.quarantined_units AS
SELECT r.fid, r.collection_id AS collection, r.tile_id, r.unit_key, u.version, b.name AS batch, r.class, r.reason, r.message,
       r.tries + r.expiries AS attempts, r.first_failed_at AS first_failed, r.last_failed_at AS last_failed, r.worker, coalesce(b.geom, t.footprint) AS geom
FROM catalog.retries r
JOIN catalog.units u USING (unit_key)
LEFT JOIN LATERAL (
    -- The batch that its last attempt was begun for, else the latest that expects it.
    SELECT b.name, e.geom
    FROM catalog.batch_units e JOIN catalog.batches b USING (batch_id)
    WHERE e.unit_key = r.unit_key
    ORDER BY e.batch_id IS NOT DISTINCT FROM r.batch_id DESC, e.geom IS NULL, e.batch_id DESC LIMIT 1) b ON true
LEFT JOIN catalog.slots s ON (s.collection_id, s.tile_id) = (r.collection_id, r.tile_id)
LEFT JOIN catalog.tiles t ON t.unit_key = s.unit_key
WHERE r.quarantined_as IS NOT NULL;
COMMENT ON VIEW   catalog.quarantined_units IS 'Units that are not tried again until somebody releases them.';
COMMENT ON COLUMN catalog.quarantined_units.fid IS 'Integer key for desktop GIS.';
COMMENT ON COLUMN catalog.quarantined_units.collection IS 'Collection.';
COMMENT ON COLUMN catalog.quarantined_units.tile_id IS 'Place in its collection.';
COMMENT ON COLUMN catalog.quarantined_units.unit_key IS 'Key of the unit.';
COMMENT ON COLUMN catalog.quarantined_units.version IS 'Version of what should have made its output.';
COMMENT ON COLUMN catalog.quarantined_units.batch IS 'Batch it was begun for, else the latest that expects it.';
COMMENT ON COLUMN catalog.quarantined_units.class IS 'Of the last failure: transient or deterministic.';
COMMENT ON COLUMN catalog.quarantined_units.reason IS 'Of the last failure: an error code, an exception''s name, http_503.';
COMMENT ON COLUMN catalog.quarantined_units.message IS 'Of the last failure, for people.';
COMMENT ON COLUMN catalog.quarantined_units.attempts IS 'Attempts that were spent on it.';
COMMENT ON COLUMN catalog.quarantined_units.first_failed IS 'When the first of them failed.';
COMMENT ON COLUMN catalog.quarantined_units.last_failed IS 'When the last one did.';
COMMENT ON COLUMN catalog.quarantined_units.worker IS 'Owner of the last one.';
COMMENT ON COLUMN catalog.quarantined_units.geom IS 'In WGS 84: the outline that its batch gave it, else that of what its place shows meanwhile; null for neither.';

DROP FUNCTION catalog.tiles_as_of(text, timestamptz);
DROP VIEW catalog.tile_history, catalog.current_tiles, catalog.outputs;
CREATE VIEW catalog.outputs AS
SELECT t.unit_key, t.collection_id AS collection, t.tile_id, u.version,
       s.location || t.object_key AS location, s.href || t.object_key AS href,
       t.media_type, t.is_cog, t.size_bytes, t.checksum,
       CASE WHEN t.crs ~ '^EPSG:[0-9]+$' THEN substr(t.crs, 6)::integer END AS epsg,
       sqrt(t.transform[2]^2 + t.transform[5]^2) AS res_x,
       sqrt(t.transform[3]^2 + t.transform[6]^2) AS res_y,
       t.width, t.height, nullif(jsonb_array_length(t.bands), 0) AS band_count,
       t.bands -> 0 ->> 'data_type' AS dtype, t.bands -> 0 ->> 'nodata' AS nodata,
       t.acquired_start, t.acquired_end, t.registered_at, t.published_at, b.name AS batch,
       h.lost_since, t.withdrawn_at, t.properties, u.identity, t.footprint AS geom,
       t.driver, t.crs_wkt, t.layout, t.layers
FROM catalog.tiles t
JOIN catalog.units u USING (unit_key)
JOIN catalog.stores s USING (store_id)
LEFT JOIN catalog.tile_health h USING (unit_key)
LEFT JOIN catalog.batches b USING (batch_id);
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
            ('published_at', 'When it could first become current; null while it waits for its batch.'),
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

COMMENT ON COLUMN catalog.outputs.driver IS 'GDAL''s short name of the format.';
COMMENT ON COLUMN catalog.outputs.crs_wkt IS 'The CRS as WKT2; null for none.';
COMMENT ON COLUMN catalog.outputs.layout IS 'How a raster''s bytes lie in its file.';
COMMENT ON COLUMN catalog.outputs.layers IS 'Layers of features, with their fields; empty for a raster.';
REVOKE ALL ON FUNCTION catalog.tiles_as_of(text, timestamptz) FROM PUBLIC;
GRANT SELECT ON catalog.outputs, catalog.current_tiles, catalog.tile_history TO catalog_reader, catalog_server;
GRANT EXECUTE ON FUNCTION catalog.tiles_as_of(text, timestamptz) TO catalog_reader, catalog_server;
GRANT SELECT, INSERT, UPDATE, DELETE ON catalog.batches, catalog.batch_units, catalog.gates, catalog.batch_counts TO catalog_server;
GRANT SELECT ON catalog.batch_unit_status TO catalog_server;
GRANT SELECT ON catalog.batch_progress, catalog.quarantined_units TO catalog_reader, catalog_server;
