-- River's migration 1, taken back as River does.

DROP TABLE river.river_migration;

DROP SCHEMA river;
