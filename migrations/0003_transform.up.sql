-- Rasters without a geotransform (placed by ground control points, or not at all) have
-- none, rather than one of pixels and lines, which read as a resolution of 1.
-- Locks: ACCESS EXCLUSIVE on tiles while each row is looked at once; rewritten are
-- those of such rasters.
ALTER TABLE catalog.tiles
    DROP CONSTRAINT tiles_raster_check,
    ADD CONSTRAINT tiles_raster_check CHECK (num_nulls(width, height) = 0 OR num_nulls(transform, width, height) = 3);
UPDATE catalog.tiles SET transform = NULL WHERE transform = '{0,1,0,0,0,1}';
COMMENT ON COLUMN catalog.tiles.transform IS 'GDAL geotransform, six numbers in GDAL''s order, units of the CRS; null where the raster has none, or there is no raster.';
