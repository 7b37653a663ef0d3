"""Predicts land cover for the tiles of a grid. Run it again, after whatever: it costs what is not done.

    python landcover.py --batch nightly-0804 --tiles 6000 --workers 8 --failures 40
    catalogd quarantine ls --batch nightly-0804
    python landcover.py --batch nightly-0804 --tiles 6000 --workers 8 --failures 40 --mended

Some tiles fail, most of them for good: their scene has an invalid geometry. For the others an API does not
answer. With --mended all that is right, and what was quarantined is tried again. The gate then judges the
batch: the exit code is 0 where it passed, and 3 where it did not.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import rasterio
from rasterio.transform import from_origin

from catalogd import Catalog, CatalogError, Unit

SIZE = 64
COLLECTION = "landcover"


class Scenes:
    """Stands for what inference reads: scenes, some of them bad, and an API. What is bad is in a directory."""

    def __init__(self, directory: Path) -> None:
        self.bad = directory / "bad"

    def spoil(self, tiles: list[str], failures: int) -> None:
        """Makes some tiles bad, once; one in thirteen of them for the API."""
        if not self.bad.exists():
            self.bad.mkdir(parents=True)
            for i, tile in enumerate(tiles[:: max(1, len(tiles) // max(1, failures))][:failures]):
                (self.bad / tile).write_text("api" if i % 13 == 9 else "geometry")

    def mend(self) -> None:
        for tile in self.bad.iterdir():
            tile.unlink()

    def read(self, tile_id: str) -> Any:
        bad = self.bad / tile_id
        if bad.exists():
            if bad.read_text() == "api":
                raise TimeoutError(f"no answer about {tile_id}")
            raise ValueError(f"invalid geometry in the scene of {tile_id}")
        seed = int.from_bytes(hashlib.sha256(tile_id.encode()).digest()[:8], "big")
        return numpy.random.default_rng(seed).integers(0, 255, (SIZE, SIZE), dtype="uint8")


def run_inference_for_tile(scenes: Scenes, tile_id: str) -> tuple[Any, dict[str, Any]]:
    scene = scenes.read(tile_id)
    number = int(tile_id[1:])
    profile = {
        "driver": "GTiff", "width": SIZE, "height": SIZE, "count": 1, "dtype": "uint8", "crs": "EPSG:32633", "compress": "deflate",
        "transform": from_origin(300_000 + 640 * (number % 100), 5_900_000 - 640 * (number // 100), 10, 10),
    }
    return (scene // 32).astype("uint8"), profile


def process_tile_resumable(unit: Unit, compute: Callable[[str], tuple[Any, dict[str, Any]]]) -> None:
    """Skip or compute: staged, promoted and marked as done by catalogd, or reported as failed, with its class."""
    with unit as u:
        if u.done:
            return
        array, profile = compute(u.tile_id)
        with rasterio.open(u.path, "w", **profile) as dst:
            dst.write(array, 1)
            dst.update_tags(**u.tags)


def work(batch: str, directory: Path, shard: int) -> tuple[collections.Counter[str], float]:
    """One worker process: claims tiles as long as there are any, and tells what it did, and how long it was at it."""
    scenes = Scenes(directory)
    did: collections.Counter[str] = collections.Counter()
    busy = 0.0
    for unit in Catalog().batch(batch).units(max=shard):
        began = time.perf_counter()
        try:
            process_tile_resumable(unit, compute=lambda tile_id: run_inference_for_tile(scenes, tile_id))
            did["computed"] += 1
        except (ValueError, OSError, CatalogError) as e:
            did[type(e).__name__ + (", to be tried again" if unit.failed and unit.failed.next == "retry" else "")] += 1
        busy += time.perf_counter() - began
    return did, busy


def tiles_for_grid(count: int) -> list[str]:
    return [f"t{i:04d}" for i in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="nightly-0804")
    parser.add_argument("--model", default="v7", help="version of the model")
    parser.add_argument("--tiles", type=int, default=6000)
    parser.add_argument("--failures", type=int, default=40)
    parser.add_argument("--workers", type=int, default=8, help="processes")
    parser.add_argument("--shard", type=int, default=25, help="tiles that a worker claims at a time")
    parser.add_argument("--scenes", type=Path, default=Path("scenes"), help="directory that remembers which tiles are bad")
    parser.add_argument("--mended", action="store_true", help="mend what is bad, and release what is quarantined")
    parser.add_argument("--max-missing-frac", type=float, default=0.002)
    args = parser.parse_args()
    tiles = tiles_for_grid(args.tiles)
    scenes = Scenes(args.scenes)
    scenes.spoil(tiles, args.failures)

    cat = Catalog()
    # Pauses for a demonstration: what may pass is tried again within a second or two.
    cat.collection(COLLECTION, title="Land cover", retry_base_seconds=0.2, retry_cap_seconds=1)
    began = time.perf_counter()
    batch = cat.open_batch(args.batch, COLLECTION)
    expected: Iterator[tuple[str, dict[str, str]]] = ((tile, {"version": args.model, "scene_id": "S2_20260804"}) for tile in tiles)
    added = batch.add(expected)
    if args.mended:
        scenes.mend()
        print(f"{batch.release(why='the scenes are mended')} tiles released")
    counts = batch.status()["counts"]
    print(f"batch {batch.name}: {added['added']} tiles added, {counts['expected']} expected, {counts['done']} done already, "
          f"seen in {time.perf_counter() - began:.1f} s", flush=True)

    did: collections.Counter[str] = collections.Counter()
    busy = 0.0
    with concurrent.futures.ProcessPoolExecutor(args.workers) as pool:
        for task in [pool.submit(work, args.batch, args.scenes, args.shard) for _ in range(args.workers)]:
            more, seconds = task.result()
            did += more
            busy += seconds
    took = time.perf_counter() - began
    computed = did.pop("computed", 0)
    for what, count in sorted(did.items()):
        print(f"{count} × {what}")
    tried = computed + sum(did.values())
    print(f"{computed} tiles computed, {counts['done']} skipped, {took:.1f} s", end="")
    if tried and counts["done"]:
        print(f"; computing all {len(tiles)} at {busy / tried:.3f} s each in {args.workers} workers: {busy / tried * len(tiles) / args.workers:.1f} s", end="")
    print(flush=True)

    gate = batch.gate(max_missing_frac=args.max_missing_frac)
    print(gate)
    return 0 if gate else 3


if __name__ == "__main__":
    sys.exit(main())
