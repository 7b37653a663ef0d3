-- What was found, planned and put into the trash is forgotten; the trash itself stays in
-- the stores, under .trash/.
DROP VIEW catalog.lost_outputs, catalog.orphan_objects;
DROP TABLE catalog.scrubs, catalog.reconcile_acts, catalog.reconcile_plans, catalog.findings, catalog.reconcile_parts, catalog.reconcile_runs;
DROP INDEX catalog.removals_trash_idx;
ALTER TABLE catalog.removals
    DROP CONSTRAINT removals_trash_check,
    DROP COLUMN trash_key, DROP COLUMN size_bytes, DROP COLUMN asked_by, DROP COLUMN expires_at, DROP COLUMN emptied_at;
