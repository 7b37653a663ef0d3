-- A raster without a geotransform has one of pixels and lines again.
UPDATE catalog.tiles SET transform = '{0,1,0,0,0,1}' WHERE transform IS NULL AND width IS NOT NULL;
ALTER TABLE catalog.tiles
    DROP CONSTRAINT tiles_raster_check,
    ADD CONSTRAINT tiles_raster_check CHECK (num_nulls(transform, width, height) IN (0, 3));
COMMENT ON COLUMN catalog.tiles.transform IS 'GDAL geotransform, six numbers in GDAL''s order, units of the CRS; null where there is no raster.';
