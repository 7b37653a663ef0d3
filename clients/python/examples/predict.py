"""Predicts tiles of a scene, of which some are poison. Run it again: it costs what failed.

    python predict.py scene.tif --model v7
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import sys
from typing import Any

import numpy
import rasterio
from rasterio.windows import Window

from catalogd import Catalog, CatalogError, PoisonTile, Unit

SIZE = 64


def compute(src: str, col: int, row: int) -> tuple[Any, dict[str, Any]]:
    """Stands for the inference: where there is data, is it more than the mean?"""
    window = Window(col, row, SIZE, SIZE)
    with rasterio.open(src) as scene:
        data = scene.read(1, window=window)
        profile = {
            "driver": "GTiff", "crs": scene.crs, "transform": scene.window_transform(window), "width": data.shape[1],
            "height": data.shape[0], "count": 1, "dtype": "uint8",
        }
    if not data.any():
        raise PoisonTile(f"no data at {col}, {row}", reason="no_data")
    return (data > data.mean()).astype(numpy.uint8), profile


def process_tile(unit: Unit, src: str, col: int, row: int) -> str:
    with unit as u:
        if u.done:
            return u.location
        array, profile = compute(src, col, row)
        with rasterio.open(u.path, "w", **profile) as dst:
            dst.write(array, 1)
            dst.update_tags(**u.tags)
    return u.location


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("src")
    parser.add_argument("--model", required=True, help="version of the model: a new one is due everywhere")
    args = parser.parse_args()

    cat = Catalog()
    cat.collection("predictions", title="Predictions")
    with rasterio.open(args.src) as scene:
        places = [(col, row) for row in range(0, scene.height, SIZE) for col in range(0, scene.width, SIZE)]
    units = {cat.unit("predictions", f"c{col}_r{row}", version=args.model, scene_id="S2_0804"): (col, row) for col, row in places}

    # One request for all: what is done, or quarantined, is not even begun.
    checked = list(cat.check(units))
    status = collections.Counter(c.status for c in checked)
    due = [c.unit for c in checked if c.due]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        tasks = {pool.submit(process_tile, unit, args.src, *units[unit]): unit for unit in due if isinstance(unit, Unit)}
        for task in concurrent.futures.as_completed(tasks):
            try:
                task.result()
            except (PoisonTile, CatalogError) as e:
                failed += 1
                print(f"{tasks[task].tile_id}: {e}", file=sys.stderr)
    print(f"{len(units)} tiles: {status['done']} were done, {len(due) - failed} are now, {failed} failed, {status['quarantined']} were quarantined")
    return 1 if status["done"] + len(due) - failed < len(units) else 0


if __name__ == "__main__":
    sys.exit(main())
