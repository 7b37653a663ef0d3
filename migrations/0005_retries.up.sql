-- What becomes of a unit that failed: when it is due again, or that it is quarantined.
-- Locks: ACCESS EXCLUSIVE on collections and failures, for the moment that it takes to
-- change their definitions: no row is rewritten.

ALTER TABLE catalog.collections
    ADD COLUMN max_retries        integer NOT NULL DEFAULT 3,
    ADD COLUMN retry_base_seconds float8  NOT NULL DEFAULT 30,
    ADD COLUMN retry_cap_seconds  float8  NOT NULL DEFAULT 3600,
    ADD COLUMN max_expiries       integer NOT NULL DEFAULT 10,
    ADD COLUMN failure_rules      jsonb   NOT NULL DEFAULT '[]',
    ADD CONSTRAINT collections_retries_check CHECK (max_retries >= 0 AND max_expiries >= 0 AND retry_base_seconds >= 0 AND retry_cap_seconds > 0),
    ADD CONSTRAINT collections_failure_rules_check CHECK (jsonb_typeof(failure_rules) = 'array');
COMMENT ON COLUMN catalog.collections.max_retries IS 'How often a unit is tried again after a transient failure; one more failure quarantines it as exhausted.';
COMMENT ON COLUMN catalog.collections.retry_base_seconds IS 'Upper bound of the pause after the first failure, doubled with each further one; the pause is drawn from 0 to that.';
COMMENT ON COLUMN catalog.collections.retry_cap_seconds IS 'No pause is longer.';
COMMENT ON COLUMN catalog.collections.max_expiries IS 'How many attempts at a unit may end without a word; one more quarantines it as expired.';
COMMENT ON COLUMN catalog.collections.failure_rules IS 'Array of {reason, class}: the first whose reason, in which * stands for any text and ? for a character, is that of a failure gives its class.';

-- What was answered to each failure: a report that is sent again is answered the same.
ALTER TABLE catalog.failures
    ADD COLUMN tries          integer,
    ADD COLUMN spent          boolean,
    ADD COLUMN due_at         timestamptz,
    ADD COLUMN quarantined_as text;
COMMENT ON COLUMN catalog.failures.tries IS 'Tries of its unit that were spent by then, this one included.';
COMMENT ON COLUMN catalog.failures.spent IS 'Whether it spent a try: not while its store was away.';
COMMENT ON COLUMN catalog.failures.due_at IS 'When the unit was to be due again.';
COMMENT ON COLUMN catalog.failures.quarantined_as IS 'Why the unit was quarantined by it; null when it was not.';

CREATE TABLE catalog.retries (
    unit_key        uuid        NOT NULL CONSTRAINT retries_pkey PRIMARY KEY CONSTRAINT retries_unit_key_fkey REFERENCES catalog.units,
    fid             bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    collection_id   text        COLLATE "C" NOT NULL,
    tile_id         text        COLLATE "C" NOT NULL,
    tries           integer     NOT NULL,
    expiries        integer     NOT NULL,
    class           text        NOT NULL,
    reason          text        NOT NULL,
    message         text        NOT NULL DEFAULT '',
    worker          text        NOT NULL,
    first_failed_at timestamptz NOT NULL,
    last_failed_at  timestamptz NOT NULL,
    due_at          timestamptz NOT NULL,
    quarantined_as  text,
    quarantined_at  timestamptz,
    CONSTRAINT retries_class_check CHECK (class IN ('transient', 'deterministic')),
    CONSTRAINT retries_quarantined_as_check CHECK (quarantined_as IN ('deterministic', 'exhausted', 'expired')),
    CONSTRAINT retries_quarantined_at_check CHECK ((quarantined_as IS NULL) = (quarantined_at IS NULL))
) WITH (fillfactor = 80);
-- What is listed, page by page; what waits.
CREATE INDEX retries_quarantined_idx ON catalog.retries (collection_id, tile_id, unit_key) WHERE quarantined_as IS NOT NULL;
CREATE INDEX retries_due_idx ON catalog.retries (due_at) WHERE quarantined_as IS NULL;
COMMENT ON TABLE  catalog.retries IS 'Units that failed, or whose leases ran out, since they last succeeded or were released.';
COMMENT ON COLUMN catalog.retries.unit_key IS 'Unit.';
COMMENT ON COLUMN catalog.retries.fid IS 'Integer key for desktop GIS.';
COMMENT ON COLUMN catalog.retries.collection_id IS 'Collection.';
COMMENT ON COLUMN catalog.retries.tile_id IS 'Place in the collection.';
COMMENT ON COLUMN catalog.retries.tries IS 'Failures that spent a try.';
COMMENT ON COLUMN catalog.retries.expiries IS 'Attempts that ended without a word: their leases ran out, or a later try of their owner took over.';
COMMENT ON COLUMN catalog.retries.class IS 'Of the last failure: transient or deterministic.';
COMMENT ON COLUMN catalog.retries.reason IS 'Of the last failure; lease_expired or replaced for an attempt that ended without a word.';
COMMENT ON COLUMN catalog.retries.message IS 'Of the last failure, for people.';
COMMENT ON COLUMN catalog.retries.worker IS 'Owner of the attempt that failed last.';
COMMENT ON COLUMN catalog.retries.first_failed_at IS 'When the first of these failures was recorded.';
COMMENT ON COLUMN catalog.retries.last_failed_at IS 'When the last one was.';
COMMENT ON COLUMN catalog.retries.due_at IS 'From when on it may be tried again, unless it is quarantined.';
COMMENT ON COLUMN catalog.retries.quarantined_as IS 'deterministic, exhausted (too many transient failures) or expired (too many attempts without a word); null while it is tried again.';
COMMENT ON COLUMN catalog.retries.quarantined_at IS 'Since when it is not to be tried.';

CREATE VIEW catalog.quarantined_units AS
SELECT r.fid, r.collection_id AS collection, r.tile_id, r.unit_key, u.version, NULL::uuid AS batch, r.class, r.reason, r.message,
       r.tries + r.expiries AS attempts, r.first_failed_at AS first_failed, r.last_failed_at AS last_failed, r.worker, t.footprint AS geom
FROM catalog.retries r
JOIN catalog.units u USING (unit_key)
LEFT JOIN catalog.slots s ON (s.collection_id, s.tile_id) = (r.collection_id, r.tile_id)
LEFT JOIN catalog.tiles t ON t.unit_key = s.unit_key
WHERE r.quarantined_as IS NOT NULL;
COMMENT ON VIEW   catalog.quarantined_units IS 'Units that are not tried again until somebody releases them.';
COMMENT ON COLUMN catalog.quarantined_units.fid IS 'Integer key for desktop GIS.';
COMMENT ON COLUMN catalog.quarantined_units.collection IS 'Collection.';
COMMENT ON COLUMN catalog.quarantined_units.tile_id IS 'Place in its collection.';
COMMENT ON COLUMN catalog.quarantined_units.unit_key IS 'Key of the unit.';
COMMENT ON COLUMN catalog.quarantined_units.version IS 'Version of what should have made its output.';
COMMENT ON COLUMN catalog.quarantined_units.batch IS 'Batch it was begun for.';
COMMENT ON COLUMN catalog.quarantined_units.class IS 'Of the last failure: transient or deterministic.';
COMMENT ON COLUMN catalog.quarantined_units.reason IS 'Of the last failure: an error code, an exception''s name, http_503.';
COMMENT ON COLUMN catalog.quarantined_units.message IS 'Of the last failure, for people.';
COMMENT ON COLUMN catalog.quarantined_units.attempts IS 'Attempts that were spent on it.';
COMMENT ON COLUMN catalog.quarantined_units.first_failed IS 'When the first of them failed.';
COMMENT ON COLUMN catalog.quarantined_units.last_failed IS 'When the last one did.';
COMMENT ON COLUMN catalog.quarantined_units.worker IS 'Owner of the last one.';
COMMENT ON COLUMN catalog.quarantined_units.geom IS 'Outline, in WGS 84, of what its place shows meanwhile; null where that is nothing.';

GRANT SELECT, INSERT, UPDATE, DELETE ON catalog.retries TO catalog_server;
GRANT SELECT ON catalog.quarantined_units TO catalog_reader, catalog_server;
