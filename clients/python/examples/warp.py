"""Warps a scene, window by window. Run it again: what is done is not done twice.

    python warp.py scene.tif EPSG:3857 --threads 4
"""

from __future__ import annotations

import argparse
import concurrent.futures

import rasterio
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from catalogd import Catalog

SIZE = 256


def warp_window(cat: Catalog, src: str, dst_crs: str, col: int, row: int, w: int, h: int) -> str:
    with cat.unit("warped", f"{col}_{row}", version="2", src=src, dst_crs=dst_crs, window=[col, row, w, h]) as u:
        if u.done:
            return u.location  # a second delivery costs nothing
        with rasterio.open(src) as scene, WarpedVRT(scene, crs=dst_crs) as warped:
            window = Window(col, row, w, h)
            profile = {
                "driver": "GTiff", "crs": dst_crs, "transform": warped.window_transform(window), "width": w, "height": h,
                "count": warped.count, "dtype": warped.dtypes[0], "nodata": warped.nodata,
            }
            with rasterio.open(u.path, "w", **profile) as dst:
                dst.write(warped.read(window=window))
                dst.update_tags(**u.tags)
    return u.location


def windows(src: str, dst_crs: str) -> list[tuple[int, int, int, int]]:
    with rasterio.open(src) as scene, WarpedVRT(scene, crs=dst_crs) as warped:
        width, height = warped.width, warped.height
    return [
        (col, row, min(SIZE, width - col), min(SIZE, height - row))
        for row in range(0, height, SIZE) for col in range(0, width, SIZE)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("src")
    parser.add_argument("dst_crs")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--processes", type=int)
    args = parser.parse_args()

    cat = Catalog()
    cat.collection("warped", title="Warped scenes")
    todo = windows(args.src, args.dst_crs)
    if args.threads or args.processes:
        executor = concurrent.futures.ThreadPoolExecutor if args.threads else concurrent.futures.ProcessPoolExecutor
        with executor(args.threads or args.processes) as pool:
            tasks = [pool.submit(warp_window, cat, args.src, args.dst_crs, *window) for window in todo]
            for task in tasks:
                print(task.result())
    else:
        for window in todo:
            print(warp_window(cat, args.src, args.dst_crs, *window))


if __name__ == "__main__":
    main()
