-- River, which runs catalogd's jobs (https://riverqueue.com), in a schema of its own: its
-- migrations as they are, a file for each, and the record of each that it looks for.
-- Locks: none that anybody could wait for, in this file and in those up to River's 8:
-- the schema is new.

CREATE SCHEMA river;
COMMENT ON SCHEMA river IS 'Jobs of catalogd, kept by River: see https://riverqueue.com/docs. Nobody but catalogd writes here.';

CREATE TABLE river.river_migration(
  id bigserial PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT NOW(),
  version bigint NOT NULL,
  CONSTRAINT version CHECK (version >= 1)
);

CREATE UNIQUE INDEX ON river.river_migration USING btree(version);

INSERT INTO river.river_migration (version) VALUES (1);
