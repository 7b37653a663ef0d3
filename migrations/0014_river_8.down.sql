-- River's migration 8, taken back as River does.

REVOKE ALL ON ALL TABLES IN SCHEMA river FROM catalog_server;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA river FROM catalog_server;
REVOKE ALL ON SCHEMA river FROM catalog_server;

DELETE FROM river.river_migration WHERE version = 8;

-- No-op. Postgres sequences already prevent automatically generated job IDs
-- from being reused.
SELECT 1;
