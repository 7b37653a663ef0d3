-- More formats than GeoTIFF, outputs of features, and more facts of both.
-- Locks: ACCESS EXCLUSIVE on collections and tiles, for the moment that it takes to
-- change their definitions: no column is rewritten.

-- A collection made before this took GeoTIFF only.
ALTER TABLE catalog.collections
    ADD COLUMN drivers text[] NOT NULL DEFAULT '{GTiff}',
    ADD CONSTRAINT collections_drivers_check CHECK (cardinality(drivers) > 0);
COMMENT ON COLUMN catalog.collections.drivers IS 'Formats that outputs may have, by GDAL''s short names; GTiff takes COGs too.';

ALTER TABLE catalog.tiles
    ADD COLUMN crs_wkt text,
    ADD COLUMN layout  jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN layers  jsonb NOT NULL DEFAULT '[]',
    ALTER COLUMN transform DROP NOT NULL,
    ALTER COLUMN width     DROP NOT NULL,
    ALTER COLUMN height    DROP NOT NULL,
    ADD CONSTRAINT tiles_raster_check CHECK (num_nulls(transform, width, height) IN (0, 3));
COMMENT ON COLUMN catalog.tiles.crs_wkt IS 'The CRS as WKT2; null for none.';
COMMENT ON COLUMN catalog.tiles.layout IS 'How a raster''s bytes lie in its file: {compression, interleave, block_size, overviews, mask, cog_reason}.';
COMMENT ON COLUMN catalog.tiles.layers IS 'Array of {name, geometry_type, feature_count, crs, fields}, one a layer of features; empty for a raster.';
COMMENT ON COLUMN catalog.tiles.transform IS 'GDAL geotransform, six numbers in GDAL''s order, units of the CRS; null where there is no raster.';
COMMENT ON COLUMN catalog.tiles.width IS 'Pixels across; null where there is no raster.';
COMMENT ON COLUMN catalog.tiles.height IS 'Pixels down; null where there is no raster.';
COMMENT ON COLUMN catalog.tiles.bands IS 'Array of {data_type, nodata, …}, one a band; empty where there is no raster.';
COMMENT ON COLUMN catalog.tiles.footprint IS 'True outline in WGS 84, split at the antimeridian; of features, that of their extent. Null where the collection takes outputs without.';
COMMENT ON COLUMN catalog.collections.footprint_optional IS 'Outputs without a WGS 84 footprint are taken.';
COMMENT ON COLUMN catalog.collections.sparse_allowed IS 'Rasters with blocks or tiles that were never written are taken.';
COMMENT ON COLUMN catalog.collections.decode_always IS 'Every block is decoded, every feature read, as proof of completeness.';

-- What current_tiles and tile_history show keeps its columns; in those of rasters,
-- features have nulls.
CREATE OR REPLACE VIEW catalog.outputs AS
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
COMMENT ON COLUMN catalog.outputs.driver IS 'GDAL''s short name of the format.';
COMMENT ON COLUMN catalog.outputs.crs_wkt IS 'The CRS as WKT2; null for none.';
COMMENT ON COLUMN catalog.outputs.layout IS 'How a raster''s bytes lie in its file.';
COMMENT ON COLUMN catalog.outputs.layers IS 'Layers of features, with their fields; empty for a raster.';
