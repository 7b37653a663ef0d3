-- Batches go, and with them what was expected. Refuses while outputs are unpublished:
-- without batches they could never become current.
DO $$
BEGIN
    IF EXISTS (SELECT FROM catalog.tiles WHERE published_at IS NULL) THEN
        RAISE EXCEPTION 'there are outputs that are not published: publish their batches first';
    END IF;
END $$;
DROP VIEW catalog.batch_progress, catalog.batch_unit_status, catalog.quarantined_units;
DROP FUNCTION catalog.tiles_as_of(text, timestamptz);
DROP VIEW catalog.tile_history, catalog.current_tiles, catalog.outputs;
DROP TABLE catalog.batch_counts, catalog.gates, catalog.batch_units, catalog.batches;
DROP INDEX catalog.attempts_owner_idx, catalog.retries_batch_idx, catalog.tiles_unpublished_idx;
ALTER TABLE catalog.attempts DROP COLUMN batch_id;
ALTER TABLE catalog.retries DROP COLUMN batch_id;
ALTER TABLE catalog.collections DROP COLUMN publish, DROP COLUMN outage_frac;
UPDATE catalog.tiles SET batch_id = NULL WHERE batch_id IS NOT NULL;

CREATE VIEW catalog.quarantined_units AS
SELECT r.fid, r.collection_id AS collection, r.tile_id, r.unit_key, u.version, NULL::uuid AS batch, r.class, r.reason, r.message,
       r.tries + r.expiries AS attempts, r.first_failed_at AS first_failed, r.last_failed_at AS last_failed, r.worker, t.footprint AS geom
FROM catalog.retries r
JOIN catalog.units u USING (unit_key)
LEFT JOIN catalog.slots s ON (s.collection_id, s.tile_id) = (r.collection_id, r.tile_id)
LEFT JOIN catalog.tiles t ON t.unit_key = s.unit_key
WHERE r.quarantined_as IS NOT NULL;
COMMENT ON VIEW   catalog.quarantined_units IS 'Units that are not tried again until somebody releases them.';
COMMENT ON COLUMN catalog.quarantined_units.fid IS 'Integer key for desktop GIS.';
COMMENT ON COLUMN catalog.quarantined_units.collection IS 'Collection.';
COMMENT ON COLUMN catalog.quarantined_units.tile_id IS 'Place in its collection.';
COMMENT ON COLUMN catalog.quarantined_units.unit_key IS 'Key of the unit.';
COMMENT ON COLUMN catalog.quarantined_units.version IS 'Version of what should have made its output.';
COMMENT ON COLUMN catalog.quarantined_units.batch IS 'Batch it was begun for.';
COMMENT ON COLUMN catalog.quarantined_units.class IS 'Of the last failure: transient or deterministic.';
COMMENT ON COLUMN catalog.quarantined_units.reason IS 'Of the last failure: an error code, an exception''s name, http_503.';
COMMENT ON COLUMN catalog.quarantined_units.message IS 'Of the last failure, for people.';
COMMENT ON COLUMN catalog.quarantined_units.attempts IS 'Attempts that were spent on it.';
COMMENT ON COLUMN catalog.quarantined_units.first_failed IS 'When the first of them failed.';
COMMENT ON COLUMN catalog.quarantined_units.last_failed IS 'When the last one did.';
COMMENT ON COLUMN catalog.quarantined_units.worker IS 'Owner of the last one.';
COMMENT ON COLUMN catalog.quarantined_units.geom IS 'Outline, in WGS 84, of what its place shows meanwhile; null where that is nothing.';

GRANT SELECT ON catalog.quarantined_units TO catalog_reader, catalog_server;

CREATE VIEW catalog.outputs AS
SELECT t.unit_key, t.collection_id AS collection, t.tile_id, u.version,
       s.location || t.object_key AS location, s.href || t.object_key AS href,
       t.media_type, t.is_cog, t.size_bytes, t.checksum,
       CASE WHEN t.crs ~ '^EPSG:[0-9]+$' THEN substr(t.crs, 6)::integer END AS epsg,
       sqrt(t.transform[2]^2 + t.transform[5]^2) AS res_x,
       sqrt(t.transform[3]^2 + t.transform[6]^2) AS res_y,
       t.width, t.height, nullif(jsonb_array_length(t.bands), 0) AS band_count,
       t.bands -> 0 ->> 'data_type' AS dtype, t.bands -> 0 ->> 'nodata' AS nodata,
       t.acquired_start, t.acquired_end, t.registered_at, t.batch_id AS batch,
       h.lost_since, t.withdrawn_at, t.properties, u.identity, t.footprint AS geom,
       t.driver, t.crs_wkt, t.layout, t.layers
FROM catalog.tiles t
JOIN catalog.units u USING (unit_key)
JOIN catalog.stores s USING (store_id)
LEFT JOIN catalog.tile_health h USING (unit_key);
COMMENT ON VIEW catalog.outputs IS 'Every output, current or not, as analysts see it; what current_tiles and tile_history are made of.';

CREATE VIEW catalog.current_tiles AS
SELECT c.fid, o.collection, o.tile_id, o.version, o.unit_key, o.location, o.href, o.media_type, o.is_cog,
       o.size_bytes, o.checksum, o.epsg, o.res_x, o.res_y, o.width, o.height, o.band_count, o.dtype, o.nodata,
       o.acquired_start, o.acquired_end, o.registered_at, o.batch, o.lost_since, o.properties, o.geom
FROM catalog.slots c
JOIN catalog.outputs o USING (unit_key);
COMMENT ON VIEW catalog.current_tiles IS 'The current output of every place.';

CREATE VIEW catalog.tile_history AS
SELECT m.id AS fid, o.collection, o.tile_id, o.version, o.unit_key, o.location, o.href, o.media_type, o.is_cog,
       o.size_bytes, o.checksum, o.epsg, o.res_x, o.res_y, o.width, o.height, o.band_count, o.dtype, o.nodata,
       o.acquired_start, o.acquired_end, o.registered_at, o.batch, o.lost_since, o.properties, o.geom,
       m.moved_at AS valid_from, m.valid_to, m.superseded_by
FROM (SELECT id, to_unit, moved_at,
             lead(moved_at) OVER slot AS valid_to,
             lead(to_unit)  OVER slot AS superseded_by
      FROM catalog.slot_history
      WINDOW slot AS (PARTITION BY collection_id, tile_id ORDER BY id)) m
JOIN catalog.outputs o ON o.unit_key = m.to_unit;
COMMENT ON VIEW catalog.tile_history IS 'Which output of a place was current from when to when, and what superseded it.';

-- SECURITY INVOKER would ask for rights on the tables behind the view; a view
-- runs with its owner's, and so does this, which reads a view only.
CREATE FUNCTION catalog.tiles_as_of(collection text, at timestamptz)
RETURNS SETOF catalog.tile_history
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT h.* FROM catalog.tile_history h
    WHERE h.collection = tiles_as_of.collection
      AND h.valid_from <= tiles_as_of.at
      AND (h.valid_to IS NULL OR h.valid_to > tiles_as_of.at);
END;
COMMENT ON FUNCTION catalog.tiles_as_of(text, timestamptz) IS 'What a reader would have seen as current in a collection at a moment.';

-- A view's columns take the comments of what they show.
DO $$
DECLARE
    described record;
BEGIN
    FOR described IN
        SELECT v.view, c.name, c.comment
        FROM (VALUES
            ('fid', 'Integer key for desktop GIS.'),
            ('collection', 'Collection.'),
            ('tile_id', 'Place of the output in its collection.'),
            ('version', 'Version of what made it.'),
            ('unit_key', 'Key of the unit whose output it is.'),
            ('location', 'What GDAL opens: a path.'),
            ('href', 'URL of the bytes.'),
            ('media_type', 'Media type.'),
            ('is_cog', 'Whether it is a cloud-optimized GeoTIFF.'),
            ('size_bytes', 'Size, bytes.'),
            ('checksum', 'algorithm:value.'),
            ('epsg', 'EPSG code of the CRS; null where it has none.'),
            ('res_x', 'Size of a pixel along a row, units of the CRS.'),
            ('res_y', 'Size of a pixel along a column, units of the CRS.'),
            ('width', 'Pixels across.'),
            ('height', 'Pixels down.'),
            ('band_count', 'Number of bands.'),
            ('dtype', 'GDAL data type of the first band.'),
            ('nodata', 'Nodata value of the first band, as text.'),
            ('acquired_start', 'Start of acquisition.'),
            ('acquired_end', 'End of acquisition.'),
            ('registered_at', 'When the row was written.'),
            ('batch', 'Batch it was begun for.'),
            ('lost_since', 'When its object was found missing; null when it is there.'),
            ('withdrawn_at', 'When an operator took it back.'),
            ('properties', 'What the task said of it.'),
            ('identity', 'Everything that decided the bytes.'),
            ('geom', 'Outline in WGS 84.'),
            ('valid_from', 'When it became current.'),
            ('valid_to', 'When it stopped being current; null while it is.'),
            ('superseded_by', 'Unit that became current after it.')) c (name, comment)
        JOIN (VALUES ('outputs'), ('current_tiles'), ('tile_history')) v (view) ON true
        JOIN information_schema.columns i
          ON i.table_schema = 'catalog' AND i.table_name = v.view AND i.column_name = c.name
    LOOP
        EXECUTE format('COMMENT ON COLUMN catalog.%I.%I IS %L', described.view, described.name, described.comment);
    END LOOP;
END $$;

COMMENT ON COLUMN catalog.outputs.driver IS 'GDAL''s short name of the format.';
COMMENT ON COLUMN catalog.outputs.crs_wkt IS 'The CRS as WKT2; null for none.';
COMMENT ON COLUMN catalog.outputs.layout IS 'How a raster''s bytes lie in its file.';
COMMENT ON COLUMN catalog.outputs.layers IS 'Layers of features, with their fields; empty for a raster.';
REVOKE ALL ON FUNCTION catalog.tiles_as_of(text, timestamptz) FROM PUBLIC;
GRANT SELECT ON catalog.outputs, catalog.current_tiles, catalog.tile_history TO catalog_reader, catalog_server;
GRANT EXECUTE ON FUNCTION catalog.tiles_as_of(text, timestamptz) TO catalog_reader, catalog_server;
