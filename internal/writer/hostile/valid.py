"""Writes valid files of many formats into the directory named first, for hostile.go to
damage, and GeoPackages that are hostile as they are."""
import os
import sqlite3
import sys

from osgeo import gdal, ogr, osr

out = sys.argv[1]
gdal.UseExceptions()
gdal.SetConfigOption("GDAL_PAM_ENABLED", "NO")
gdal.PushErrorHandler("CPLQuietErrorHandler")
utm = osr.SpatialReference()
utm.ImportFromEPSG(32633)


def raster(bands=1, width=200, height=150, mask=False, dtype=gdal.GDT_Byte):
    ds = gdal.GetDriverByName("MEM").Create("", width, height, bands, dtype)
    ds.SetGeoTransform((500000, 10, 0, 5000000, 0, -10))
    ds.SetProjection(utm.ExportToWkt())
    ds.SetMetadataItem("TIFFTAG_DATETIME", "2026:08:04 10:00:00")
    ds.SetMetadataItem("CATALOGD_VERSION", "1")
    line = bytes((i * 7) % 251 for i in range(width))
    for b in range(bands):
        band = ds.GetRasterBand(b + 1)
        for y in range(height):
            band.WriteRaster(0, y, width, 1, line[y % 7:] + line[:y % 7], buf_type=gdal.GDT_Byte)
    if mask:
        ds.CreateMaskBand(gdal.GMF_PER_DATASET)
        ds.GetRasterBand(1).GetMaskBand().WriteRaster(0, 0, width, 1, b"\xff" * width)
    return ds


def write(name, driver, ds, *options):
    if gdal.GetDriverByName(driver) is None:
        return
    gdal.GetDriverByName(driver).CreateCopy(os.path.join(out, name), ds, options=list(options))


gdal.SetConfigOption("GDAL_TIFF_INTERNAL_MASK", "YES")
write("strips.tif", "GTiff", raster())
write("tiles.tif", "GTiff", raster(3), "TILED=YES", "COMPRESS=DEFLATE", "INTERLEAVE=BAND", "BLOCKXSIZE=64", "BLOCKYSIZE=64")
write("big.tif", "GTiff", raster(2), "BIGTIFF=YES", "COMPRESS=LZW", "PREDICTOR=2", "ENDIANNESS=BIG")
for codec in ("JPEG", "WEBP", "ZSTD", "LERC", "PACKBITS", "LZMA"):
    write(codec.lower() + ".tif", "GTiff", raster(3), "TILED=YES", "COMPRESS=" + codec)
write("float.tif", "GTiff", raster(1, dtype=gdal.GDT_Float64), "COMPRESS=DEFLATE", "PREDICTOR=3")
write("cog.tif", "COG", raster(3, 600, 600, mask=True), "COMPRESS=DEFLATE", "BLOCKSIZE=128")
write("jpeg-cog.tif", "COG", raster(3, 600, 600, mask=True), "COMPRESS=JPEG", "BLOCKSIZE=128")
gcps = raster()
gcps.SetGCPs([gdal.GCP(500000 + 10 * x, 5000000 - 10 * y, 0, x, y) for x in (0, 100, 200) for y in (0, 75, 150)], utm)
write("gcps.tif", "GTiff", gcps)
for name, target in ("stdin", "/vsistdin/"), ("file", "/etc/passwd"), ("base", ":::BASE:::/etc/passwd"), ("net", "/vsicurl/http://127.0.0.1:9/x.tif"):
    ds = gdal.GetDriverByName("GTiff").Create(os.path.join(out, f"overviews-{name}.evil.tif"), 20, 20)
    ds.SetMetadataItem("OVERVIEW_FILE", target, "OVERVIEWS")
    ds.GetRasterBand(1).Fill(1)
    ds = None
write("image.png", "PNG", raster(3))
write("image.jpg", "JPEG", raster(3))
write("image.webp", "WEBP", raster(3))
write("image.jp2", "JP2OpenJPEG", raster(3))
write("data.nc", "netCDF", raster(), "FORMAT=NC4")
write("tiles.gpkg", "GPKG", raster(3, 600, 600))

# Bombs: one block that is small on disk.
for codec in ("LZW", "ZSTD"):
    ds = gdal.GetDriverByName("GTiff").Create(os.path.join(out, f"bomb-{codec.lower()}.tif"), 16384, 16384, 1, gdal.GDT_Byte,
                                              ["TILED=YES", "BLOCKXSIZE=16384", "BLOCKYSIZE=16384", "COMPRESS=" + codec])
    ds.SetProjection(utm.ExportToWkt())
    ds.SetGeoTransform((500000, 10, 0, 5000000, 0, -10))
    ds.GetRasterBand(1).Fill(1)
    ds = None


def features(name, driver):
    ds = ogr.GetDriverByName(driver).CreateDataSource(os.path.join(out, name))
    layer = ds.CreateLayer("fields", utm if driver != "GeoJSON" else None, ogr.wkbPolygon)
    layer.CreateField(ogr.FieldDefn("crop", ogr.OFTString))
    for i in range(50):
        f = ogr.Feature(layer.GetLayerDefn())
        f["crop"] = "wheat" * (i % 5)
        x, y = (500000 + 100 * i, 5000000) if driver != "GeoJSON" else (10 + i / 100, 50)
        d = 50 if driver != "GeoJSON" else 0.005
        f.SetGeometry(ogr.CreateGeometryFromWkt(f"POLYGON (({x} {y},{x + d} {y},{x + d} {y + d},{x} {y}))"))
        layer.CreateFeature(f)
    ds = None


features("fields.gpkg", "GPKG")
features("fields.fgb", "FlatGeobuf")
features("fields.geojson", "GeoJSON")

# GeoPackages that have SQLite, GDAL or PROJ do things.
GRID = ('BOUNDCRS[SOURCECRS[GEOGCRS["x",DATUM["x",ELLIPSOID["x",6378137,298.25]],CS[ellipsoidal,2],AXIS["latitude",north],AXIS["longitude",east],'
        'ANGLEUNIT["degree",0.0174532925199433]]],TARGETCRS[GEOGCRS["WGS 84",DATUM["World Geodetic System 1984",ELLIPSOID["WGS 84",6378137,298.257223563]],'
        'CS[ellipsoidal,2],AXIS["latitude",north],AXIS["longitude",east],ANGLEUNIT["degree",0.0174532925199433]]],'
        'ABRIDGEDTRANSFORMATION["x",METHOD["NTv2",ID["EPSG",9615]],PARAMETERFILE["Latitude and longitude difference file","/etc/passwd"]]]')
LOOP = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r)"
MASTER = "PRAGMA writable_schema = ON"
for name, statements in {
    "triggers": ["CREATE TRIGGER t1 AFTER INSERT ON fields BEGIN SELECT load_extension('/tmp/x.so'); END",
                 "CREATE TRIGGER t2 INSTEAD OF DELETE ON fields_view BEGIN DELETE FROM fields; END"],
    "view": [],
    "view-loop": [f"CREATE VIEW evil AS {LOOP} SELECT i AS fid, NULL AS geom FROM r"],
    "view-memory": ["CREATE VIEW evil AS SELECT 1 AS fid, zeroblob(1000000000) AS geom"],
    "view-functions": ["CREATE VIEW evil AS SELECT 1 AS fid, load_extension('/etc/passwd') AS geom, readfile('/etc/passwd') AS x, ogr_geocode('x') AS y"],
    "count-loop": [f"CREATE VIEW evil AS SELECT fid, geom FROM fields WHERE EXISTS ({LOOP} SELECT 1 FROM r WHERE i < 0)"],
    "srs": [f"UPDATE gpkg_spatial_ref_sys SET definition = '{GRID}', organization = 'none' WHERE srs_id = 32633"],
    "srs-path": ["UPDATE gpkg_spatial_ref_sys SET definition = '/etc/passwd', organization = 'http://127.0.0.1/'"],
    "quotes": ["UPDATE gpkg_contents SET table_name = 'fields\"; ATTACH ''/tmp/x'' AS y; --'"],
    "virtual": [MASTER, "INSERT INTO sqlite_master VALUES ('table', 'evil', 'evil', 0, 'CREATE VIRTUAL TABLE evil USING VirtualOGR(''/etc/passwd'')')"],
    "fts": ["CREATE VIRTUAL TABLE evil USING fts4(geom, content='fields')"],
    "schema": [MASTER, "UPDATE sqlite_master SET rootpage = 99999 WHERE name = 'fields'"],
    "same-root": [MASTER, "UPDATE sqlite_master SET rootpage = 1 WHERE type = 'table'"],
    "extensions": ["INSERT INTO gpkg_extensions VALUES ('fields', 'geom', 'gpkg_elevation_tiles', 'http://127.0.0.1/x', 'read-write')"],
    "metadata": ["CREATE TABLE gpkg_metadata (id INTEGER PRIMARY KEY, md_scope TEXT, md_standard_uri TEXT, mime_type TEXT, metadata TEXT)",
                 "CREATE TABLE gpkg_metadata_reference (reference_scope TEXT, table_name TEXT, column_name TEXT, row_id_value INTEGER, timestamp TEXT, md_file_id INTEGER, md_parent_id INTEGER)",
                 "INSERT INTO gpkg_metadata VALUES (1, 'dataset', 'http://gdal.org', 'text/xml', '<GDALMultiDomainMetadata><Metadata domain=\"xml:VRT\" format=\"xml\"><VRTDataset/></Metadata></GDALMultiDomainMetadata>')",
                 "INSERT INTO gpkg_metadata_reference VALUES ('geopackage', NULL, NULL, NULL, '2026-01-01', 1, NULL)"],
    "geometry": ["UPDATE fields SET geom = randomblob(100) WHERE fid % 2"],
    "deep": ["UPDATE fields SET geom = x'4750000100000000" + "010700000001000000" * 100_000 + "' WHERE fid < 4"],
}.items():
    path = os.path.join(out, name + ".evil.gpkg")
    with open(os.path.join(out, "fields.gpkg"), "rb") as source, open(path, "wb") as copy:
        copy.write(source.read())
    db = sqlite3.connect(path, isolation_level=None)
    # GDAL's own triggers call functions of its own.
    for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        db.execute(f'DROP TRIGGER "{trigger}"')
    db.execute("CREATE VIEW fields_view AS SELECT * FROM fields")
    for s in statements:
        db.execute(s)
    if name.startswith("view") or name in ("virtual", "fts", "count-loop"):
        table = "fields_view" if name == "view" else "evil"
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("UPDATE gpkg_contents SET table_name = ?", (table,))
        db.execute("UPDATE gpkg_geometry_columns SET table_name = ?", (table,))
    db.close()

# Tiles that claim to be enormous.
path = os.path.join(out, "matrix.evil.gpkg")
with open(os.path.join(out, "tiles.gpkg"), "rb") as source, open(path, "wb") as copy:
    copy.write(source.read())
db = sqlite3.connect(path, isolation_level=None)
for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
    db.execute(f'DROP TRIGGER "{trigger}"')
db.execute("UPDATE gpkg_tile_matrix SET matrix_width = 2147483647, matrix_height = 65536, tile_width = 65535, tile_height = 65535")
db.close()
