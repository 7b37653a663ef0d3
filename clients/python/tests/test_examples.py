"""The examples run, and do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest

import numpy
import rasterio

from . import rasters
from .serving import CLIENT, SETTINGS, server


class Examples(unittest.TestCase):
    def run_example(self, kind: str, name: str, *args: str, status: int = 0) -> str:
        out = subprocess.run([sys.executable, "-B", str(CLIENT / "examples" / name), *args], env=server(kind).env(), capture_output=True, text=True, timeout=300)
        self.assertEqual(out.returncode, status, out.stderr)
        return out.stdout

    def test_warp(self) -> None:
        """A plain loop, threads and processes, each from nothing; and again."""
        for kind, how, again in [("directory", [], []), ("directory", ["--threads", "3"], None), ("directory", ["--processes", "2"], ["--threads", "2"]), ("s3", ["--threads", "3"], None)]:
            with self.subTest(kind=kind, how=how), tempfile.TemporaryDirectory() as dir:
                scene = os.path.join(dir, "scene.tif")
                rasters.write(scene, size=400)
                first = self.run_example(kind, "warp.py", scene, "EPSG:3857", *how).split()
                self.assertGreaterEqual(len(first), 4)
                if again is not None:
                    self.assertEqual(self.run_example(kind, "warp.py", scene, "EPSG:3857", *again).split(), first)
                key = server(kind).catalog().key("warped", "0_0", version="2", src=scene, dst_crs="EPSG:3857", window=[0, 0, 256, 256])
                self.assertEqual(len([line for line in first if "/0_0." + key.replace("-", "")[:12] in line]), 1)
                self.assertGreater(rasters.checksum(first[3], SETTINGS[kind]["gdal"]), 0)

    def test_predict(self) -> None:
        """A rerun costs what failed; a new version of the model is due everywhere."""
        with tempfile.TemporaryDirectory() as dir:
            scene = os.path.join(dir, "scene.tif")
            rasters.write(scene, size=256)
            with rasterio.open(scene, "r+") as r:
                for col, row in ((64, 64), (128, 0)):
                    r.write(numpy.zeros((64, 64), "uint8"), 1, window=rasterio.windows.Window(col, row, 64, 64))
            said = self.run_example("directory", "predict.py", scene, "--model", "v7", status=1)
            self.assertEqual(said, "16 tiles: 0 were done, 14 are now, 2 failed, 0 were quarantined\n")
            said = server("directory").sql("SELECT DISTINCT class, reason, count(*) FROM catalog.failures WHERE collection_id = 'predictions' GROUP BY 1, 2")
            self.assertEqual(said, "deterministic|no_data|2")
            self.assertRegex(self.run_example("directory", "predict.py", scene, "--model", "v8", status=1), "0 were done, 14 are now")
            said = self.run_example("directory", "predict.py", scene, "--model", "v7", status=1)
            self.assertEqual(said, "16 tiles: 14 were done, 0 are now, 0 failed, 2 were quarantined\n")
