"""Uploads straight to S3, over a line that a test disturbs."""

from __future__ import annotations

import contextlib
import time
import unittest
import urllib.parse
from typing import Any
from unittest import mock

from . import rasters
from .serving import SETTINGS, TOKEN, catalogd, first, refusal, server

PART = 5 << 20
LARGE = {"size": 2600, "count": 3}  # 20 MiB: four parts, of which the last is shorter


class Upload(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.s = server("s3")
        cls.s.catalog().collection("uploads")

    def setUp(self) -> None:
        self.line = self.s.line
        self.line.calm()
        self.addCleanup(self.line.calm)

    def tearDown(self) -> None:
        for _, _, headers in self.line.seen:
            self.assertNotIn("Authorization", headers)
            self.assertNotIn(TOKEN, str(headers))

    def hand_over(self, *, parts: bool, around: bool = False, **options: Any) -> catalogd.Unit:
        cat = self.s.catalog(part_size=PART, **options)
        # Nobody says that it goes through catalogd, unless that is asked for.
        with contextlib.nullcontext() if around else self.assertNoLogs("catalogd", "WARNING"):
            with cat.unit("uploads", self._testMethodName + ("_parts" if parts else ""), version="1") as u:
                rasters.write(u.path, **(LARGE if parts else {}))
                want = rasters.checksum(u.path)
        self.assertEqual(u.state, "done")
        self.assertEqual(rasters.checksum(u.location, SETTINGS["s3"]["gdal"]), want)
        return u

    def part_numbers(self) -> list[str]:
        return [urllib.parse.parse_qs(urllib.parse.urlsplit(target).query)["partNumber"][0] for target, _ in self.line.puts()]

    def test_plain(self) -> None:
        self.hand_over(parts=False)
        (target, headers), = self.line.puts()
        self.assertIn("X-Amz-Signature", target)
        self.assertIn("If-None-Match", headers)
        self.line.calm()
        self.hand_over(parts=True)
        self.assertEqual(sorted(self.part_numbers()), ["1", "2", "3", "4"])

    def test_answer_lost(self) -> None:
        """It is sent again. A single one is refused then, since it is there: that is success."""
        self.line.cut = first(1, True, False)
        self.hand_over(parts=False)
        self.assertEqual(len(self.line.puts()), 2)
        self.line.calm()
        self.line.cut = first(2, True, False)
        self.hand_over(parts=True)
        self.assertEqual(len(self.line.puts()), 6)

    def test_slow_down(self) -> None:
        self.line.before = first(2, refusal(503, "SlowDown"))
        self.hand_over(parts=False)
        self.assertEqual(len(self.line.puts()), 3)
        self.line.calm()
        self.line.before = first(2, refusal(500, "InternalError"))
        self.hand_over(parts=True)
        self.assertEqual(len(self.line.puts()), 6)

    def test_expired(self) -> None:
        """What expired is signed anew; parts that are there are not sent again."""
        for parts in (False, True):
            self.line.calm()
            self.line.before = first(1, refusal(403, "AccessDenied"))
            self.hand_over(parts=parts)
            self.assertEqual(len(self.line.puts()), 5 if parts else 2)
        ids = {urllib.parse.parse_qs(urllib.parse.urlsplit(target).query)["uploadId"][0] for target, _ in self.line.puts()}
        self.assertEqual(len(ids), 1, "another upload was begun")

    def test_refused_for_good(self) -> None:
        """A store that takes nothing from here is gone round."""
        for parts in (False, True):
            self.line.calm()
            self.line.before = first(99, refusal(403, "AccessDenied"))
            with self.assertLogs("catalogd", "WARNING") as logs:
                self.hand_over(parts=parts, around=True)
            self.assertRegex("\n".join(logs.output), "sending through catalogd")

    def test_no_way_to_it(self) -> None:
        self.line.before = first(99, (502, [("Content-Type", "text/html")], b"<html>a proxy</html>"))
        with mock.patch.object(catalogd, "_UNREACHABLE_AFTER", 0.5), self.assertLogs("catalogd", "WARNING") as logs:
            self.hand_over(parts=False, around=True)
            self.hand_over(parts=True, around=True)
        self.assertEqual("\n".join(logs.output).count("sending through catalogd"), 2)

    def test_little_patience(self) -> None:
        """Shorter than it takes to see that there is no way to the store."""
        self.line.before = first(99, (502, [], b""))
        with self.assertLogs("catalogd", "WARNING") as logs:
            self.hand_over(parts=False, around=True, patience=1)
        self.assertRegex("\n".join(logs.output), "sending through catalogd")

    def test_store_away(self) -> None:
        """Once it was reached it is waited for; then the attempt is given up."""
        self.line.before = first(99, refusal(503, "SlowDown"))
        u = self.s.catalog(patience=1).unit("uploads", "away", version="1")
        with self.assertRaisesRegex(catalogd.Unavailable, "the store at") as caught, u:
            rasters.write(u.path)
        self.assertTrue(caught.exception.store)
        self.assertEqual(u.state, "abandoned")

    def test_altered(self) -> None:
        """Bytes that arrive as others are sent again, as those they are."""
        real = catalogd._Upload.blocks
        left = [2]

        def altered(upload: Any, request: Any) -> Any:
            for block in real(upload, request):
                if left[0] > 0 and request["offset"] == 0:
                    left[0] -= 1
                    block = bytes([block[0] ^ 1]) + block[1:]
                yield block

        with mock.patch.object(catalogd._Upload, "blocks", altered):
            self.hand_over(parts=False)
            self.assertEqual(left, [0])
            left[0] = 1
            self.hand_over(parts=True)
            left[0] = 99
            with self.assertRaises(catalogd.CatalogError), self.s.catalog(part_size=PART).unit("uploads", "altered", version="1") as u:
                rasters.write(u.path, **LARGE)
        self.assertEqual(u.state, "abandoned")

    def test_file_changes(self) -> None:
        """A file that is still being written is not handed over."""
        u = self.s.catalog().unit("uploads", "changes", version="1")

        def change(method: str, target: str) -> None:
            with open(u.path, "r+b") as f:
                f.write(b"II")
            return None

        self.line.before = change
        self.line.cut = first(1, True, False)
        with self.assertRaisesRegex(catalogd.CatalogError, "changed while it was read"), u:
            rasters.write(u.path)
            time.sleep(0.02)
        self.assertEqual(u.state, "abandoned")

    def test_lost(self) -> None:
        """An upload whose attempt was taken over is sent no further."""
        taken: list[catalogd.Unit] = []

        def slow(method: str, target: str) -> None:
            if method == "PUT" and not taken:
                other = self.s.catalog(owner="me", try_=1, upload=True).unit("uploads", "lost", version="1")
                taken.append(other)
                with other:
                    rasters.write(other.path, seed=2)
            time.sleep(3)
            return None

        self.line.before = slow
        u = self.s.catalog(owner="me", part_size=PART).unit("uploads", "lost", version="1")
        with self.assertRaises(catalogd.Lost), u:
            rasters.write(u.path, **LARGE)
        self.assertEqual((u.state, taken[0].state), ("lost", "done"))

    def test_server_killed(self) -> None:
        """While the parts go up."""
        killed: list[bool] = []

        def kill(method: str, target: str) -> None:
            if method == "PUT" and not killed:
                killed.append(True)
                self.s.kill()
                self.s.start()
            return None

        self.line.before = kill
        self.hand_over(parts=True, around=True)
        self.assertEqual(len(self.line.puts()), 4)
