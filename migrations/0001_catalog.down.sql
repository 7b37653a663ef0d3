-- Everything catalogd has in this database. The roles stay: they belong to the
-- cluster, and other databases may use them. PostGIS stays too.
DROP SCHEMA catalog CASCADE;
