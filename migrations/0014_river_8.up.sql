-- River's migration 8, as it is.

-- No-op. Postgres sequences already prevent automatically generated job IDs
-- from being reused.
SELECT 1;

INSERT INTO river.river_migration (line, version) VALUES ('main', 8);

GRANT USAGE ON SCHEMA river TO catalog_server;
GRANT SELECT, INSERT, UPDATE, DELETE ON river.river_job, river.river_leader, river.river_queue, river.river_notification TO catalog_server;
GRANT SELECT ON river.river_migration TO catalog_server;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA river TO catalog_server;
