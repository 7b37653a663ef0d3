"""The independent GDAL of the tests: makes rasters, and says where their pixels are.

Reads one JSON array of cases on stdin, writes one of answers on stdout.
  make:  {path, crs, esri, w, h, gt, gcps}          -> {}
  judge: {path, truth: {crs, gt}, footprint, seed, n} -> {wkt, probes: [lon, lat, in], back}
"""
import json
import math
import random
import sys

from osgeo import gdal, osr

gdal.UseExceptions()
gdal.SetConfigOption("GDAL_PAM_ENABLED", "NO")
gdal.PushErrorHandler("CPLQuietErrorHandler")


def system(text, esri=False):
    srs = osr.SpatialReference()
    srs.SetFromUserInput(text)
    if esri:
        srs.MorphToESRI()
        wkt = srs.ExportToWkt()
        srs = osr.SpatialReference()
        srs.ImportFromWkt(wkt)
    srs.SetAxisMappingStrategy(osr.OAMS_TRADITIONAL_GIS_ORDER)
    return srs


def make(c):
    ds = gdal.GetDriverByName("GTiff").Create(c["path"], c["w"], c["h"], 1, gdal.GDT_Byte, ["SPARSE_OK=TRUE", "TILED=YES"])
    srs = system(c["crs"], c.get("esri")) if c.get("crs") else None
    if c.get("gcps"):
        ds.SetGCPs([gdal.GCP(x, y, 0, px, ln) for px, ln, x, y in c["gcps"]], srs)
    else:
        if srs:
            ds.SetSpatialRef(srs)
        ds.SetGeoTransform(c["gt"])
    ds.FlushCache()
    return {}


def judge(c):
    ds = gdal.Open(c["path"])
    w, h = ds.RasterXSize, ds.RasterYSize
    srs = ds.GetSpatialRef() or ds.GetGCPSpatialRef()
    exact = ds.GetGCPCount() == 0
    if c.get("truth"):
        ds = gdal.GetDriverByName("MEM").Create("", w, h, 0)
        srs = system(c["truth"]["crs"])
        ds.SetSpatialRef(srs)
        ds.SetGeoTransform(c["truth"]["gt"])
        exact = True
    wgs84 = system("EPSG:4326")
    tr = gdal.Transformer(ds, None, ["DST_SRS=" + wgs84.ExportToWkt(), "INSERT_CENTER_LONG=NO"])

    def pixels(ll):
        return [p[:2] if ok and all(map(math.isfinite, p)) else None for p, ok in zip(*tr.TransformPoints(1, ll))]

    # A turn round the Earth in pixels, where there is one.
    gt, turn = ds.GetGeoTransform(), c.get("turn", 0)
    det = gt[1] * gt[5] - gt[2] * gt[4]
    turns = [(k * turn * gt[5] / det, -k * turn * gt[4] / det) for k in (-2, -1, 0, 1, 2)] if turn else [(0, 0)]

    def lonlat(uv):
        # PROJ shifts no datum at longitudes beyond 180.
        if turn == 360:
            def k(u, v):
                x = gt[0] + u * gt[1] + v * gt[2]
                return -round(x / 360) if abs(x) > 180 else 0
            uv = [(u + k(u, v) * turn * gt[5] / det, v - k(u, v) * turn * gt[4] / det, z) for u, v, z in uv]
        return [p if ok and all(map(math.isfinite, p)) and abs(p[1]) <= 90 else None for p, ok in zip(*tr.TransformPoints(0, uv))]

    def inside(p, margin=0.0):
        return any(-margin < p[0] + a < w + margin and -margin < p[1] + b < h + margin for a, b in turns)

    # Places just within and without the edges, and all over.
    rnd, m = random.Random(c["seed"]), 0.55
    uv, want = [], []
    for i in range(c["n"]):
        u, v = rnd.uniform(min(m, w / 2), max(w - m, w / 2)), rnd.uniform(min(m, h / 2), max(h - m, h / 2))
        side, dist = rnd.randrange(8), m * rnd.choice((1, 1, 2, 20))
        if side == 0 and w > 2 * dist: u = dist
        elif side == 1 and w > 2 * dist: u = w - dist
        elif side == 2 and h > 2 * dist: v = dist
        elif side == 3 and h > 2 * dist: v = h - dist
        elif side == 4 and i % 2: u = -dist
        elif side == 5 and i % 2: u = w + dist
        elif side == 6 and i % 2: v = -dist
        elif side == 7 and i % 2: v = h + dist
        if min(u, w - u, v, h - v) < m and u > 0 and v > 0 and u < w and v < h:
            continue  # a thin raster has no such place
        uv.append((u, v, 0))
        want.append(0 < u < w and 0 < v < h)
    probes = []
    there = lonlat(uv)
    back = pixels([p or (0, 0, 0) for p in there])
    for p, q, b, yes in zip(uv, there, back, want):
        if q is None:
            continue
        if exact:
            # What is no image of a place on the Earth does not come back; what is
            # without may be within, once round.
            if b is None:
                continue
            same = min(math.hypot(b[0] + x - p[0], b[1] + y - p[1]) for x, y in turns) < 0.1
            if not same and abs(q[1]) < 89.99999 or not yes and inside(b, 0.5):
                continue
        lon = q[0] - 360 * math.floor((q[0] + 180) / 360)
        probes.append([lon, q[1], yes])

    # The footprint's edges, but for the cuts, projected back: how far from the outline?
    error = 0.0
    if exact:
        ll = []
        for polygon in c["footprint"]:
            for ring in polygon:
                for (x0, y0), (x1, y1) in zip(ring, ring[1:]):
                    if abs(x0) > 180 - 1e-5 and x0 == x1 or abs(y0) == 90 and y0 == y1:
                        continue
                    ll += [(x0 + k / 8 * (x1 - x0), y0 + k / 8 * (y1 - y0), 0) for k in range(8)]
        for p in pixels(ll):
            if p is None:
                error = math.inf
                continue
            best = math.inf
            for a, b in turns:
                u, v = p[0] + a, p[1] + b
                if 0 <= u <= w and 0 <= v <= h:
                    d = min(u, w - u, v, h - v)
                else:
                    d = math.hypot(max(-u, 0, u - w), max(-v, 0, v - h))
                best = min(best, d)
            error = max(error, best)
    return {"wkt": srs.ExportToWkt(["FORMAT=WKT2_2019"]), "probes": probes, "back": error if math.isfinite(error) else -1}


json.dump([{"make": make, "judge": judge}[sys.argv[1]](c) for c in json.load(sys.stdin)], sys.stdout)
