-- River's migration 6, taken back as River does.

DELETE FROM river.river_migration WHERE version = 6;


--
-- Drop `river_job.unique_states` and its index.
--

DROP INDEX river.river_job_unique_idx;

ALTER TABLE river.river_job
    DROP COLUMN unique_states;

CREATE UNIQUE INDEX IF NOT EXISTS river_job_kind_unique_key_idx ON river.river_job (kind, unique_key) WHERE unique_key IS NOT NULL;

--
-- Drop `river_job_state_in_bitmask` function.
--
DROP FUNCTION river.river_job_state_in_bitmask;
