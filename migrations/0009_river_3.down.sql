-- River's migration 3, taken back as River does.

DELETE FROM river.river_migration WHERE version = 3;

ALTER TABLE river.river_job
    ALTER COLUMN tags DROP NOT NULL,
    ALTER COLUMN tags DROP DEFAULT;
