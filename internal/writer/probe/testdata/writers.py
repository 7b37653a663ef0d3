"""Real writers, to be killed: GDAL in Python, with small caches.

    writers.py modes                    names of the writers
    writers.py kill MODE DIR SEED N     one whole file, then N that are killed, one line each
    writers.py digest PATH              what is in a file, decoded

Each writer is a process of its own, forked from one that has GDAL loaded, and killed
(SIGKILL) at a random moment of the time that a whole run takes.
"""
import hashlib
import os
import random
import signal
import sys
import time

from osgeo import gdal, ogr, osr

gdal.UseExceptions()
ogr.UseExceptions()
gdal.SetCacheMax(256 << 10)

SIZE, BLOCK = 768, 128
UTM = osr.SpatialReference()
UTM.ImportFromEPSG(32633)
WGS84 = osr.SpatialReference()
WGS84.ImportFromEPSG(4326)
WGS84.SetAxisMappingStrategy(osr.OAMS_TRADITIONAL_GIS_ORDER)
NOISE = random.Random(7).randbytes(4 * BLOCK * SIZE)


def block(i, n):
    """n bytes that compress a little, other ones for each i."""
    at = i * 977 % len(NOISE)
    half = (NOISE + NOISE)[at:at + n // 2]
    return half + bytes([1 + i % 200]) * (n - len(half))


def place(ds):
    ds.SetProjection(UTM.ExportToWkt())
    ds.SetGeoTransform([500000, 10, 0, 5000000, 0, -10])


def gtiff(path, options, bands=3, tiled=True, flush=0, finish=None):
    if tiled:
        options = options + ["TILED=YES", f"BLOCKXSIZE={BLOCK}", f"BLOCKYSIZE={BLOCK}"]
    else:
        options = options + ["BLOCKYSIZE=16"]
    ds = gdal.GetDriverByName("GTiff").Create(path, SIZE, SIZE, bands, gdal.GDT_Byte, options)
    place(ds)
    windows = [(x, y, BLOCK, BLOCK) for y in range(0, SIZE, BLOCK) for x in range(0, SIZE, BLOCK)]
    if not tiled:
        windows = [(0, y, SIZE, 16) for y in range(0, SIZE, 16)]
    for i, (x, y, w, h) in enumerate(windows):
        ds.WriteRaster(x, y, w, h, block(i, w * h * bands))
        if flush and i % flush == flush - 1:
            ds.FlushCache()
        time.sleep(0.002)
    if finish:
        finish(ds)
    ds = None


def overviews(ds):
    ds.BuildOverviews("NEAREST", [2, 4])


def source(bands, mask=False):
    ds = gdal.GetDriverByName("MEM").Create("", SIZE, SIZE, bands, gdal.GDT_Byte)
    place(ds)
    for y in range(0, SIZE, BLOCK):
        ds.WriteRaster(0, y, SIZE, BLOCK, block(y, SIZE * BLOCK * bands))
    if mask:
        ds.CreateMaskBand(gdal.GMF_PER_DATASET)
        ds.GetRasterBand(1).GetMaskBand().WriteRaster(0, 0, SIZE, SIZE, b"\xff" * (SIZE * SIZE // 2) + b"\0" * (SIZE * SIZE // 2))
    return ds


def slowly(*_):
    time.sleep(0.001)
    return 1


def copy(driver, path, options, bands=3, mask=False):
    gdal.GetDriverByName(driver).CreateCopy(path, source(bands, mask), 0, options, slowly)


def layer(ds, options=()):
    made = ds.CreateLayer("fields", WGS84, ogr.wkbPolygon, list(options))
    for name, kind in (("crop", ogr.OFTString), ("area", ogr.OFTReal), ("n", ogr.OFTInteger64)):
        made.CreateField(ogr.FieldDefn(name, kind))
    return made


def features(driver, path, options=(), layer_options=(), transaction=0, count=600):
    ds = gdal.GetDriverByName(driver).Create(path, 0, 0, 0, gdal.GDT_Unknown, list(options))
    made = layer(ds, layer_options)
    for i in range(count):
        if transaction and i % transaction == 0:
            ds.StartTransaction()
        f = ogr.Feature(made.GetLayerDefn())
        f["crop"], f["area"], f["n"] = "x" * (3000 if i % 50 == 7 else 5 + i % 40), i / 3, i
        x, y = 10 + i % 30 / 100, 50 + i // 30 / 100
        f.SetGeometry(ogr.CreateGeometryFromWkt(f"POLYGON(({x} {y},{x + .01} {y},{x} {y + .01},{x} {y}))"))
        made.CreateFeature(f)
        if transaction and i % transaction == transaction - 1:
            ds.CommitTransaction()
        if i % 10 == 0:
            time.sleep(0.001)
    made = None
    ds = None


def wal(write):
    gdal.SetConfigOption("OGR_SQLITE_JOURNAL", "WAL")
    write()


MODES = {
    "stripped.tif": lambda p: gtiff(p, [], tiled=False),
    "stripped-flush.tif": lambda p: gtiff(p, [], tiled=False, flush=5),
    "stripped-deflate.tif": lambda p: gtiff(p, ["COMPRESS=DEFLATE"], tiled=False),
    "tiled.tif": lambda p: gtiff(p, []),
    "tiled-flush.tif": lambda p: gtiff(p, [], flush=5),
    "tiled-deflate.tif": lambda p: gtiff(p, ["COMPRESS=DEFLATE"]),
    "tiled-deflate-flush.tif": lambda p: gtiff(p, ["COMPRESS=DEFLATE"], flush=3),
    "tiled-threads.tif": lambda p: gtiff(p, ["COMPRESS=ZSTD", "NUM_THREADS=2"]),
    "jpeg.tif": lambda p: gtiff(p, ["COMPRESS=JPEG", "PHOTOMETRIC=YCBCR", "INTERLEAVE=PIXEL"]),
    "planar-bigtiff-msb.tif": lambda p: gtiff(p, ["INTERLEAVE=BAND", "BIGTIFF=YES", "ENDIANNESS=BIG", "COMPRESS=LZW"]),
    "bigtiff-flush.tif": lambda p: gtiff(p, ["BIGTIFF=YES"], flush=4),
    "overviews.tif": lambda p: gtiff(p, ["COMPRESS=DEFLATE"], finish=overviews),
    "cog.tif": lambda p: copy("COG", p, ["BLOCKSIZE=128", "COMPRESS=DEFLATE", "OVERVIEWS=IGNORE_EXISTING"]),
    "cog-raw-mask.tif": lambda p: copy("COG", p, ["BLOCKSIZE=128", "COMPRESS=NONE", "OVERVIEWS=IGNORE_EXISTING"], mask=True),
    "raster.gpkg": lambda p: copy("GPKG", p, ["TILE_FORMAT=PNG", "BLOCKSIZE=128"]),
    "raster-wal.gpkg": lambda p: wal(lambda: copy("GPKG", p, ["TILE_FORMAT=PNG", "BLOCKSIZE=128"])),
    "vector.gpkg": lambda p: features("GPKG", p),
    "vector-transactions.gpkg": lambda p: features("GPKG", p, transaction=50),
    "vector-wal.gpkg": lambda p: wal(lambda: features("GPKG", p, transaction=50)),
    "vector.fgb": lambda p: features("FlatGeobuf", p, count=3000),
    "vector-noindex.fgb": lambda p: features("FlatGeobuf", p, layer_options=["SPATIAL_INDEX=NO"], count=3000),
    "vector.geojson": lambda p: features("GeoJSON", p, count=3000),
    "raster.jp2": lambda p: copy("JP2OpenJPEG", p, ["BLOCKXSIZE=128", "BLOCKYSIZE=128", "QUALITY=50"]),
}


def run(mode, path, after=None):
    """Write a file in a process of its own; kill it so long after the file is there.

    Says how long it lived from then on, and how it ended.
    """
    pid = os.fork()
    if pid == 0:
        try:
            MODES[mode](path)
            os._exit(0)
        except BaseException as e:  # the parent must not go on twice
            print(e, file=sys.stderr)
            os._exit(1)
    ended, there, now = 0, None, time.monotonic()
    while not ended:
        if there is None and os.path.exists(path):
            there = now
        if after is not None and there is not None and now >= there + after:
            os.kill(pid, signal.SIGKILL)
            after = None
        time.sleep(0.0003)
        now = time.monotonic()
        ended, status = os.waitpid(pid, os.WNOHANG)
    return now - (there or now), status


def kill(mode, directory, seed, n):
    rng = random.Random(f"{seed} {mode}")
    whole = os.path.join(directory, "whole-" + mode)
    took = []
    for path in (os.path.join(directory, "first-" + mode), whole):
        seconds, status = run(mode, path)
        took.append(seconds)
        assert status == 0, mode
    print("whole", whole, flush=True)
    for i in range(n):
        path = os.path.join(directory, f"{i}-{mode}")
        _, status = run(mode, path, rng.uniform(0, 1.1 * min(took)))
        print("done" if status == 0 else "killed", path, flush=True)
        if not sys.stdin.readline():  # until it was looked at
            return


def digest(path):
    h = hashlib.sha256()
    # Killed after its tiles and before its metadata, a GeoPackage has all its pixels, and
    # does not say how many bands it has (see docs/probe.md). One that GDAL creates and
    # does not copy never says it, and is opened with four.
    ds = gdal.OpenEx(path, open_options=["BAND_COUNT=4"] if path.endswith("raster.gpkg") else [])
    for b in range(1, ds.RasterCount + 1):
        band = ds.GetRasterBand(b)
        h.update(band.ReadRaster())
        h.update(band.GetMaskBand().ReadRaster())
    rows = []
    for i in range(ds.GetLayerCount()):
        for f in ds.GetLayer(i):
            rows.append(f.ExportToJson())
    for row in sorted(rows):
        h.update(row.encode())
    print(h.hexdigest(), ds.RasterCount, len(rows))


if sys.argv[1] == "modes":
    print("\n".join(MODES))
elif sys.argv[1] == "kill":
    kill(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
else:
    digest(sys.argv[2])
