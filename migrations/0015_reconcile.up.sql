-- Reconciliation: runs, what they found, plans, trash, and scrubs.
-- Locks: ACCESS EXCLUSIVE on removals for the moment that it takes to change its
-- definition: no row is rewritten.

CREATE TABLE catalog.reconcile_runs (
    run_id        bigint      NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT reconcile_runs_pkey PRIMARY KEY,
    store_id      text        NOT NULL CONSTRAINT reconcile_runs_store_id_fkey REFERENCES catalog.stores,
    prefix        text        COLLATE "C" NOT NULL DEFAULT '',
    source        text        NOT NULL,
    min_age       interval    NOT NULL,
    settle        interval    NOT NULL,
    state         text        NOT NULL,
    asked_by      text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at      timestamptz,
    canceled_by   text,
    figures       jsonb       NOT NULL DEFAULT '{}',
    kinds         jsonb       NOT NULL DEFAULT '[]',
    error_code    text,
    error_message text,
    CONSTRAINT reconcile_runs_source_check CHECK (source IN ('store', 'listing')),
    CONSTRAINT reconcile_runs_state_check CHECK (state IN ('running', 'complete', 'incomplete', 'canceled')),
    CONSTRAINT reconcile_runs_ended_at_check CHECK ((state = 'running') = (ended_at IS NULL))
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX reconcile_runs_running_key ON catalog.reconcile_runs (store_id) WHERE state = 'running';
CREATE INDEX reconcile_runs_store_idx ON catalog.reconcile_runs (store_id, run_id);
COMMENT ON TABLE  catalog.reconcile_runs IS 'Comparisons of the catalogue with a store; one at a time of each store.';
COMMENT ON COLUMN catalog.reconcile_runs.run_id IS 'Order.';
COMMENT ON COLUMN catalog.reconcile_runs.store_id IS 'Store.';
COMMENT ON COLUMN catalog.reconcile_runs.prefix IS 'Only keys that begin with it were compared; empty for all.';
COMMENT ON COLUMN catalog.reconcile_runs.source IS 'Whose listing: the store''s own, or one that the caller gave.';
COMMENT ON COLUMN catalog.reconcile_runs.min_age IS 'How long an object that is not catalogd''s must have been seen before it is a finding.';
COMMENT ON COLUMN catalog.reconcile_runs.settle IS 'How long after it was missing for the first time an object is looked for again.';
COMMENT ON COLUMN catalog.reconcile_runs.state IS 'running, complete, incomplete (nothing may be concluded from what was not seen) or canceled.';
COMMENT ON COLUMN catalog.reconcile_runs.asked_by IS 'Name of the token, or the schedule.';
COMMENT ON COLUMN catalog.reconcile_runs.created_at IS 'When it was asked for.';
COMMENT ON COLUMN catalog.reconcile_runs.ended_at IS 'When it ended.';
COMMENT ON COLUMN catalog.reconcile_runs.canceled_by IS 'Who asked for it to stop.';
COMMENT ON COLUMN catalog.reconcile_runs.figures IS 'Totals: objects, rows, matched, ….';
COMMENT ON COLUMN catalog.reconcile_runs.kinds IS 'Findings by kind as the run left them: {kind, new, open, resolved, bytes, example}.';
COMMENT ON COLUMN catalog.reconcile_runs.error_code IS 'Why it is incomplete.';
COMMENT ON COLUMN catalog.reconcile_runs.error_message IS 'The same in words.';

CREATE TABLE catalog.reconcile_parts (
    run_id        bigint      NOT NULL CONSTRAINT reconcile_parts_run_id_fkey REFERENCES catalog.reconcile_runs ON DELETE CASCADE,
    part          integer     NOT NULL,
    kind          text        NOT NULL,
    from_key      text        COLLATE "C" NOT NULL DEFAULT '',
    to_key        text        COLLATE "C" NOT NULL DEFAULT '',
    state         text        NOT NULL DEFAULT 'queued',
    at_key        text        COLLATE "C" NOT NULL DEFAULT '',
    figures       jsonb       NOT NULL DEFAULT '{}',
    queued_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    error_code    text,
    error_message text,
    CONSTRAINT reconcile_parts_pkey PRIMARY KEY (run_id, part),
    CONSTRAINT reconcile_parts_kind_check CHECK (kind IN ('keys', 'leftovers')),
    CONSTRAINT reconcile_parts_state_check CHECK (state IN ('queued', 'running', 'complete', 'incomplete'))
) WITH (fillfactor = 50);
COMMENT ON TABLE  catalog.reconcile_parts IS 'What a run is divided into, for several servers.';
COMMENT ON COLUMN catalog.reconcile_parts.run_id IS 'Run.';
COMMENT ON COLUMN catalog.reconcile_parts.part IS 'Number, from 0.';
COMMENT ON COLUMN catalog.reconcile_parts.kind IS 'keys: objects and rows in a range of keys; leftovers: staging, unfinished uploads, stable names.';
COMMENT ON COLUMN catalog.reconcile_parts.from_key IS 'First key; empty for the first of all.';
COMMENT ON COLUMN catalog.reconcile_parts.to_key IS 'Key before which it ends; empty for none.';
COMMENT ON COLUMN catalog.reconcile_parts.state IS 'queued, running, complete or incomplete.';
COMMENT ON COLUMN catalog.reconcile_parts.at_key IS 'How far it has come.';
COMMENT ON COLUMN catalog.reconcile_parts.figures IS 'Totals so far.';
COMMENT ON COLUMN catalog.reconcile_parts.queued_at IS 'When a job was last queued for it.';
COMMENT ON COLUMN catalog.reconcile_parts.error_code IS 'Why it is incomplete.';
COMMENT ON COLUMN catalog.reconcile_parts.error_message IS 'The same in words.';

CREATE TABLE catalog.findings (
    finding_id     bigint      NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT findings_pkey PRIMARY KEY,
    store_id       text        NOT NULL CONSTRAINT findings_store_id_fkey REFERENCES catalog.stores,
    kind           text        NOT NULL,
    object_key     text        COLLATE "C" NOT NULL,
    state          text        NOT NULL,
    unit_key       uuid,
    attempt_id     uuid,
    reason         text        NOT NULL DEFAULT '',
    size_bytes     bigint      NOT NULL DEFAULT 0,
    expected_bytes bigint,
    found_by       text        NOT NULL,
    first_seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolved_at    timestamptz,
    last_run       bigint,
    opened_run     bigint,
    resolved_run   bigint,
    CONSTRAINT findings_object_key_key UNIQUE (store_id, kind, object_key),
    CONSTRAINT findings_kind_check CHECK (kind IN ('orphan', 'lost', 'mismatch', 'stale_staging', 'abandoned_upload')),
    CONSTRAINT findings_state_check CHECK (state IN ('young', 'open', 'resolved')),
    CONSTRAINT findings_found_by_check CHECK (found_by IN ('reconcile', 'scrub')),
    CONSTRAINT findings_resolved_at_check CHECK ((state = 'resolved') = (resolved_at IS NOT NULL))
) WITH (fillfactor = 80);
CREATE INDEX findings_open_idx ON catalog.findings (store_id, kind, object_key) WHERE state <> 'resolved';
COMMENT ON TABLE  catalog.findings IS 'What reconciliation saw that should not be; one row for a kind and an object, across runs.';
COMMENT ON COLUMN catalog.findings.finding_id IS 'Order of first sight.';
COMMENT ON COLUMN catalog.findings.store_id IS 'Store.';
COMMENT ON COLUMN catalog.findings.kind IS 'orphan: an object without a row; lost: a row without its object; mismatch: an object that is not what its row says; stale_staging, abandoned_upload: what ended attempts left.';
COMMENT ON COLUMN catalog.findings.object_key IS 'Object; of an upload, with its id after a ?.';
COMMENT ON COLUMN catalog.findings.state IS 'young: an object of others, not old enough yet; open; resolved: not so any more.';
COMMENT ON COLUMN catalog.findings.unit_key IS 'Unit of the row; null for an object without one.';
COMMENT ON COLUMN catalog.findings.attempt_id IS 'Attempt of the row, as it was read; of an orphan, the attempt whose name it bears.';
COMMENT ON COLUMN catalog.findings.reason IS 'What differs of a mismatch: size, etag, checksum.';
COMMENT ON COLUMN catalog.findings.size_bytes IS 'Size of the object, bytes; of a lost one, what it should be.';
COMMENT ON COLUMN catalog.findings.expected_bytes IS 'Size by the row.';
COMMENT ON COLUMN catalog.findings.found_by IS 'reconcile or scrub.';
COMMENT ON COLUMN catalog.findings.first_seen_at IS 'When it was first seen, since it was last resolved.';
COMMENT ON COLUMN catalog.findings.last_seen_at IS 'When it was last seen.';
COMMENT ON COLUMN catalog.findings.resolved_at IS 'When it was no longer so.';
COMMENT ON COLUMN catalog.findings.last_run IS 'The last run that saw it, or could not tell.';
COMMENT ON COLUMN catalog.findings.opened_run IS 'The run in which it became open.';
COMMENT ON COLUMN catalog.findings.resolved_run IS 'The run that resolved it.';

CREATE TABLE catalog.reconcile_plans (
    plan_id       bigint      NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT reconcile_plans_pkey PRIMARY KEY,
    run_id        bigint      NOT NULL CONSTRAINT reconcile_plans_run_id_fkey REFERENCES catalog.reconcile_runs ON DELETE CASCADE,
    state         text        NOT NULL DEFAULT 'planned',
    choices       jsonb       NOT NULL,
    catalogued    bigint      NOT NULL,
    planned_by    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by    text,
    why           text        NOT NULL DEFAULT '',
    max_change    float8,
    started_at    timestamptz,
    ended_at      timestamptz,
    error_code    text,
    error_message text,
    CONSTRAINT reconcile_plans_state_check CHECK (state IN ('planned', 'applying', 'applied', 'refused'))
) WITH (fillfactor = 80);
CREATE INDEX reconcile_plans_run_id_idx ON catalog.reconcile_plans (run_id);
COMMENT ON TABLE  catalog.reconcile_plans IS 'What is to be done about a run''s findings; applied once.';
COMMENT ON COLUMN catalog.reconcile_plans.plan_id IS 'Order.';
COMMENT ON COLUMN catalog.reconcile_plans.run_id IS 'Run.';
COMMENT ON COLUMN catalog.reconcile_plans.state IS 'planned, applying, applied, or refused (the store was away, or too much would have changed).';
COMMENT ON COLUMN catalog.reconcile_plans.choices IS 'What was asked for, by kind.';
COMMENT ON COLUMN catalog.reconcile_plans.catalogued IS 'Outputs of the store when it was planned: what a share is of.';
COMMENT ON COLUMN catalog.reconcile_plans.planned_by IS 'Name of the token.';
COMMENT ON COLUMN catalog.reconcile_plans.created_at IS 'When it was planned.';
COMMENT ON COLUMN catalog.reconcile_plans.applied_by IS 'Who had it applied.';
COMMENT ON COLUMN catalog.reconcile_plans.why IS 'The reason given.';
COMMENT ON COLUMN catalog.reconcile_plans.max_change IS 'Share of the catalogue that it was allowed to change.';
COMMENT ON COLUMN catalog.reconcile_plans.started_at IS 'When applying began.';
COMMENT ON COLUMN catalog.reconcile_plans.ended_at IS 'When it ended.';
COMMENT ON COLUMN catalog.reconcile_plans.error_code IS 'Why it was refused.';
COMMENT ON COLUMN catalog.reconcile_plans.error_message IS 'The same in words.';

CREATE TABLE catalog.reconcile_acts (
    plan_id    bigint      NOT NULL CONSTRAINT reconcile_acts_plan_id_fkey REFERENCES catalog.reconcile_plans ON DELETE CASCADE,
    act_no     integer     NOT NULL,
    act        text        NOT NULL,
    finding_id bigint      NOT NULL,
    kind       text        NOT NULL,
    object_key text        COLLATE "C" NOT NULL,
    unit_key   uuid,
    attempt_id uuid,
    size_bytes bigint      NOT NULL,
    state      text        NOT NULL DEFAULT 'planned',
    outcome    text        NOT NULL DEFAULT '',
    done_at    timestamptz,
    CONSTRAINT reconcile_acts_pkey PRIMARY KEY (plan_id, act_no),
    CONSTRAINT reconcile_acts_act_check CHECK (act IN ('redo', 'adopt', 'trash')),
    CONSTRAINT reconcile_acts_state_check CHECK (state IN ('planned', 'done', 'left'))
) WITH (fillfactor = 80);
COMMENT ON TABLE  catalog.reconcile_acts IS 'The acts of a plan.';
COMMENT ON COLUMN catalog.reconcile_acts.plan_id IS 'Plan.';
COMMENT ON COLUMN catalog.reconcile_acts.act_no IS 'Order, from 1.';
COMMENT ON COLUMN catalog.reconcile_acts.act IS 'redo: the unit is due again; adopt: the object gets a row; trash: the object is moved to the trash.';
COMMENT ON COLUMN catalog.reconcile_acts.finding_id IS 'Finding.';
COMMENT ON COLUMN catalog.reconcile_acts.kind IS 'Its kind.';
COMMENT ON COLUMN catalog.reconcile_acts.object_key IS 'Object.';
COMMENT ON COLUMN catalog.reconcile_acts.unit_key IS 'Unit of the row, if there is one.';
COMMENT ON COLUMN catalog.reconcile_acts.attempt_id IS 'Attempt of the row: of another one nothing is done.';
COMMENT ON COLUMN catalog.reconcile_acts.size_bytes IS 'Size, bytes.';
COMMENT ON COLUMN catalog.reconcile_acts.state IS 'planned; done; left: it was not so any more, or could not be done.';
COMMENT ON COLUMN catalog.reconcile_acts.outcome IS 'Why it was left; where it is now.';
COMMENT ON COLUMN catalog.reconcile_acts.done_at IS 'When.';

-- A removal either deletes, or moves to the trash, which is emptied later.
ALTER TABLE catalog.removals
    ADD COLUMN trash_key  text COLLATE "C",
    ADD COLUMN size_bytes bigint,
    ADD COLUMN asked_by   text,
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN emptied_at timestamptz,
    ADD CONSTRAINT removals_trash_check CHECK ((trash_key IS NULL) = (expires_at IS NULL));
CREATE INDEX removals_trash_idx ON catalog.removals (store_id, expires_at) WHERE trash_key IS NOT NULL AND emptied_at IS NULL;
COMMENT ON COLUMN catalog.removals.trash_key IS 'Where the object is moved to; null for one that is deleted.';
COMMENT ON COLUMN catalog.removals.size_bytes IS 'Its size, bytes, where it is moved.';
COMMENT ON COLUMN catalog.removals.asked_by IS 'Who had it moved.';
COMMENT ON COLUMN catalog.removals.expires_at IS 'When it may be deleted from the trash.';
COMMENT ON COLUMN catalog.removals.emptied_at IS 'When it was deleted from the trash, or put back.';

CREATE TABLE catalog.scrubs (
    store_id   text        NOT NULL CONSTRAINT scrubs_pkey PRIMARY KEY CONSTRAINT scrubs_store_id_fkey REFERENCES catalog.stores,
    at_key     text        COLLATE "C" NOT NULL DEFAULT '',
    lap_began  timestamptz NOT NULL DEFAULT clock_timestamp(),
    lap_ended  timestamptz,
    ran_at     timestamptz,
    verified   bigint      NOT NULL DEFAULT 0,
    read_bytes bigint      NOT NULL DEFAULT 0,
    bad        bigint      NOT NULL DEFAULT 0
);
COMMENT ON TABLE  catalog.scrubs IS 'How far the checksums of a store''s outputs have been read again: round and round, in order of their keys.';
COMMENT ON COLUMN catalog.scrubs.store_id IS 'Store.';
COMMENT ON COLUMN catalog.scrubs.at_key IS 'The last output that was read: those after it were not read for the longest time.';
COMMENT ON COLUMN catalog.scrubs.lap_began IS 'When the present round began.';
COMMENT ON COLUMN catalog.scrubs.lap_ended IS 'When the last round ended; null before the first has.';
COMMENT ON COLUMN catalog.scrubs.ran_at IS 'When a scrub last ran.';
COMMENT ON COLUMN catalog.scrubs.verified IS 'Outputs read, ever.';
COMMENT ON COLUMN catalog.scrubs.read_bytes IS 'Bytes read, ever.';
COMMENT ON COLUMN catalog.scrubs.bad IS 'Outputs whose checksum was not that of their row, ever.';

CREATE VIEW catalog.orphan_objects AS
SELECT f.finding_id AS fid, s.root AS store, f.object_key, s.location || f.object_key AS location, f.size_bytes, f.attempt_id IS NOT NULL AS written_by_catalogd,
       f.state, f.first_seen_at AS first_seen, f.last_seen_at AS last_seen, f.last_run AS run
FROM catalog.findings f JOIN catalog.stores s USING (store_id)
WHERE f.kind = 'orphan' AND f.state <> 'resolved';
COMMENT ON VIEW catalog.orphan_objects IS 'Objects without a row, as reconciliation last saw them.';
COMMENT ON COLUMN catalog.orphan_objects.fid IS 'Integer key.';
COMMENT ON COLUMN catalog.orphan_objects.store IS 'Root of the store.';
COMMENT ON COLUMN catalog.orphan_objects.object_key IS 'Name below the root.';
COMMENT ON COLUMN catalog.orphan_objects.location IS 'What GDAL opens.';
COMMENT ON COLUMN catalog.orphan_objects.size_bytes IS 'Size, bytes.';
COMMENT ON COLUMN catalog.orphan_objects.written_by_catalogd IS 'Whether it has the name of an attempt.';
COMMENT ON COLUMN catalog.orphan_objects.state IS 'open, or young: not catalogd''s, and not seen for long enough to be called an orphan.';
COMMENT ON COLUMN catalog.orphan_objects.first_seen IS 'When it was first seen.';
COMMENT ON COLUMN catalog.orphan_objects.last_seen IS 'When it was last seen.';
COMMENT ON COLUMN catalog.orphan_objects.run IS 'The run that last saw it.';

CREATE VIEW catalog.lost_outputs AS
SELECT f.finding_id AS fid, f.kind, f.reason, t.collection_id AS collection, t.tile_id, u.version, f.unit_key, s.location || f.object_key AS location, f.object_key,
       t.size_bytes, p.unit_key IS NOT NULL AS is_current, b.name AS batch, h.lost_since, f.first_seen_at AS first_seen, f.last_seen_at AS last_seen, f.last_run AS run, t.footprint AS geom
FROM catalog.findings f
JOIN catalog.stores s USING (store_id)
JOIN catalog.tiles t ON t.unit_key = f.unit_key AND t.attempt_id = f.attempt_id
JOIN catalog.units u ON u.unit_key = f.unit_key
LEFT JOIN catalog.slots p ON p.unit_key = f.unit_key
LEFT JOIN catalog.tile_health h ON h.unit_key = f.unit_key
LEFT JOIN catalog.batches b ON b.batch_id = t.batch_id
WHERE f.kind IN ('lost', 'mismatch') AND f.state = 'open';
COMMENT ON VIEW catalog.lost_outputs IS 'Outputs whose object is not there, or is not what their row says, as reconciliation last saw them.';
COMMENT ON COLUMN catalog.lost_outputs.fid IS 'Integer key for desktop GIS.';
COMMENT ON COLUMN catalog.lost_outputs.kind IS 'lost or mismatch.';
COMMENT ON COLUMN catalog.lost_outputs.reason IS 'What differs of a mismatch: size, etag, checksum.';
COMMENT ON COLUMN catalog.lost_outputs.collection IS 'Collection.';
COMMENT ON COLUMN catalog.lost_outputs.tile_id IS 'Place of the output in its collection.';
COMMENT ON COLUMN catalog.lost_outputs.version IS 'Version of what made it.';
COMMENT ON COLUMN catalog.lost_outputs.unit_key IS 'Key of the unit whose output it is.';
COMMENT ON COLUMN catalog.lost_outputs.location IS 'What GDAL would open.';
COMMENT ON COLUMN catalog.lost_outputs.object_key IS 'Name below the store''s root.';
COMMENT ON COLUMN catalog.lost_outputs.size_bytes IS 'Size by the row, bytes.';
COMMENT ON COLUMN catalog.lost_outputs.is_current IS 'Whether its place points to it: others are not made again.';
COMMENT ON COLUMN catalog.lost_outputs.batch IS 'Batch it was begun for.';
COMMENT ON COLUMN catalog.lost_outputs.lost_since IS 'When its unit was made due again; null for not yet.';
COMMENT ON COLUMN catalog.lost_outputs.first_seen IS 'When it was first seen to be so.';
COMMENT ON COLUMN catalog.lost_outputs.last_seen IS 'When it was last seen to be so.';
COMMENT ON COLUMN catalog.lost_outputs.run IS 'The run that last saw it.';
COMMENT ON COLUMN catalog.lost_outputs.geom IS 'Outline in WGS 84.';

GRANT SELECT, INSERT, UPDATE, DELETE ON catalog.reconcile_runs, catalog.reconcile_parts, catalog.findings, catalog.reconcile_plans, catalog.reconcile_acts, catalog.scrubs TO catalog_server;
GRANT SELECT ON catalog.orphan_objects, catalog.lost_outputs TO catalog_reader, catalog_server;
