-- River's migration 2, taken back as River does.

DELETE FROM river.river_migration WHERE version = 2;

DROP TABLE river.river_job;
DROP FUNCTION river.river_job_notify;
DROP TYPE river.river_job_state;

DROP TABLE river.river_leader;
