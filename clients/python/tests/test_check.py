"""Checks of many units: sent and read at once."""

from __future__ import annotations

import collections
import time
import tracemalloc
import unittest
from collections.abc import Iterator
from typing import Any

from . import rasters
from .serving import catalogd, server


class Check(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.s = server("directory")
        cls.cat = cls.s.catalog()
        cls.cat.collection("checks")
        with cls.cat.unit("checks", "t0", version="1") as cls.done:
            if not cls.done.done:
                rasters.write(cls.done.path)

    def test_kinds(self) -> None:
        bad = {"collection": "checks", "tile_id": "../x", "identity": {"version": "1"}}
        units: list[catalogd.UnitRef] = [
            self.done, self.done.key, ("checks", "t0", {"version": "1"}), ("checks", "t0", '{"version":"2"}'), bad,
            {"unit_key": self.done.key}, ("checks", "t1", {"version": "1", "n": 2**60}), self.cat.unit("checks", "t9", version="1"),
        ]
        got = list(self.cat.check(units, verify=True))
        self.assertEqual([c.status for c in got], ["done", "done", "done", "stale", None, "done", None, "new"])
        self.assertEqual([c.due for c in got], [False, False, False, True, False, False, False, True])
        self.assertEqual([c.unit for c in got], units)
        self.assertEqual([c.error.code if c.error else "" for c in got], ["", "", "", "", "invalid_tile_id", "", "invalid_identity", ""])
        self.assertEqual((got[0].key, got[0].current), (self.done.key, True))
        assert self.done.row is not None
        self.assertEqual(got[0].object_key, self.done.row["object_key"])
        self.assertEqual(list(self.cat.check([])), [])

    def test_twenty_thousand(self) -> None:
        count = 20_000
        taken = 0

        def units() -> Iterator[catalogd.UnitRef]:
            nonlocal taken
            for i in range(count):
                taken += 1
                yield "checks", f"t{i}", {"version": "1", **({"scene": "S2" * 40} if i else {})}

        got: collections.Counter[Any] = collections.Counter()
        tracemalloc.start()
        for i, checked in enumerate(self.cat.check(units())):
            if i == 0:
                self.assertLess(taken, count, "nothing came before all was sent")
            assert isinstance(checked.unit, tuple)
            self.assertEqual(checked.unit[1], f"t{i}")
            got[checked.status] += 1
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        self.assertEqual(got, {"done": 1, "new": count - 1})
        self.assertLess(most, 24 << 20)

    def test_left_early(self) -> None:
        for checked in self.cat.check(("checks", f"t{i}", {"version": "1"}) for i in range(10**9)):
            self.assertEqual(checked.status, "done")
            break
        checks = self.cat.check(("checks", f"t{i}", {"version": "1"}) for i in range(10**9))
        next(checks)
        checks.close()  # type: ignore[attr-defined]

    def test_units_raise(self) -> None:
        def units() -> Iterator[catalogd.UnitRef]:
            yield self.done
            raise LookupError("the list of tiles is away")

        with self.assertRaisesRegex(LookupError, "list of tiles"):
            list(self.cat.check(units()))
        with self.assertRaisesRegex(TypeError, "PosixPath"):
            import pathlib

            list(self.cat.check([("checks", "t0", {"version": "1", "a": pathlib.Path("a")})]))
        with self.assertRaises(catalogd.Invalid):
            list(self.cat.check([("checks", "t0", "{")]))

    def test_refused(self) -> None:
        with self.assertRaises(catalogd.Refused) as caught:
            list(catalogd.Catalog(self.s.url, "catd_" + "x" * 43).check([self.done.key]))
        self.assertEqual(caught.exception.code, "unauthenticated")

    def test_cut_off(self) -> None:
        """An answer without its last line is no answer."""
        def units() -> Iterator[catalogd.UnitRef]:
            for i in range(200_000):
                yield "checks", f"t{i}", {"version": "1"}

        got = 0
        try:
            with self.assertRaisesRegex(catalogd.Unavailable, "cut off"):
                for got, _ in enumerate(self.cat.check(units())):
                    if got == 1000:
                        self.s.kill()
        finally:
            self.s.start()
        self.assertGreaterEqual(got, 1000)
        self.assertLess(got, 200_000 - 1)

    def test_slow(self) -> None:
        """Units that come slowly are sent as they come."""
        def units() -> Iterator[catalogd.UnitRef]:
            for i in range(4):
                yield "checks", f"t{i}", {"version": "1"}
                time.sleep(0.6)

        self.assertEqual(len(list(self.cat.check(units()))), 4)
