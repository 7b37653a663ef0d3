-- Back to GeoTIFF only. Refuses while there are outputs of features: they have no
-- place in the older tables.
DROP FUNCTION catalog.tiles_as_of(text, timestamptz);
DROP VIEW catalog.tile_history, catalog.current_tiles, catalog.outputs;

ALTER TABLE catalog.tiles
    DROP CONSTRAINT tiles_raster_check,
    DROP COLUMN crs_wkt,
    DROP COLUMN layout,
    DROP COLUMN layers,
    ALTER COLUMN transform SET NOT NULL,
    ALTER COLUMN width     SET NOT NULL,
    ALTER COLUMN height    SET NOT NULL;
ALTER TABLE catalog.collections DROP COLUMN drivers;
COMMENT ON COLUMN catalog.tiles.transform IS 'GDAL geotransform, six numbers in GDAL''s order, units of the CRS.';
COMMENT ON COLUMN catalog.tiles.width IS 'Pixels across.';
COMMENT ON COLUMN catalog.tiles.height IS 'Pixels down.';
COMMENT ON COLUMN catalog.tiles.bands IS 'Array of {data_type, nodata, …}, one a band.';
COMMENT ON COLUMN catalog.tiles.footprint IS 'True outline in WGS 84, split at the antimeridian; null where the collection takes rasters without.';
COMMENT ON COLUMN catalog.collections.footprint_optional IS 'Rasters without a WGS 84 footprint are taken.';
COMMENT ON COLUMN catalog.collections.sparse_allowed IS 'TIFFs with blocks that were never written are taken.';
COMMENT ON COLUMN catalog.collections.decode_always IS 'Every block is decoded as proof of completeness.';

-- One place says how an output looks to an analyst; the views differ in which
-- outputs they show, and when.
CREATE VIEW catalog.outputs AS
SELECT t.unit_key, t.collection_id AS collection, t.tile_id, u.version,
       s.location || t.object_key AS location, s.href || t.object_key AS href,
       t.media_type, t.is_cog, t.size_bytes, t.checksum,
       CASE WHEN t.crs ~ '^EPSG:[0-9]+$' THEN substr(t.crs, 6)::integer END AS epsg,
       sqrt(t.transform[2]^2 + t.transform[5]^2) AS res_x,
       sqrt(t.transform[3]^2 + t.transform[6]^2) AS res_y,
       t.width, t.height, jsonb_array_length(t.bands) AS band_count,
       t.bands -> 0 ->> 'data_type' AS dtype, t.bands -> 0 ->> 'nodata' AS nodata,
       t.acquired_start, t.acquired_end, t.registered_at, t.batch_id AS batch,
       h.lost_since, t.withdrawn_at, t.properties, u.identity, t.footprint AS geom
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

REVOKE ALL ON FUNCTION catalog.tiles_as_of(text, timestamptz) FROM PUBLIC;
GRANT SELECT ON catalog.outputs, catalog.current_tiles, catalog.tile_history TO catalog_reader, catalog_server;
GRANT EXECUTE ON FUNCTION catalog.tiles_as_of(text, timestamptz) TO catalog_reader, catalog_server;
