"""Small rasters, by rasterio."""

from __future__ import annotations

import os
from typing import Any

import numpy
import rasterio
from rasterio.transform import from_origin


def write(path: str, *, size: int = 64, seed: int = 1, tags: dict[str, str] | None = None, **profile: Any) -> None:
    settings = {
        "driver": "GTiff", "width": size, "height": size, "count": 1, "dtype": "uint8", "crs": "EPSG:32633",
        "transform": from_origin(500_000, 5_800_000, 10, 10), **profile,
    }
    with rasterio.open(path, "w", **settings) as dst:
        dst.write(numpy.random.default_rng(seed).integers(1, 255, (settings["count"], size, size), dtype="uint8"))
        dst.update_tags(**(tags or {}))


def checksum(location: str, env: dict[str, str] | None = None) -> int:
    """Of the pixels, as GDAL has it. `env` is GDAL's."""
    options = {k: v for k, v in (env or {}).items() if k.startswith("AWS_")}
    with rasterio.Env(session=None, **{"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"}):
        before = {k: os.environ.get(k) for k in options}
        os.environ.update(options)
        try:
            with rasterio.open(location) as r:
                return int(r.checksum(1))
        finally:
            for k, v in before.items():
                if v is None:
                    del os.environ[k]
                else:
                    os.environ[k] = v
