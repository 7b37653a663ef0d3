"""The DAGs of docs/airflow.md, in an Airflow of a few lines."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
import types
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from . import rasters
from .serving import ROOT, TOKEN, catalogd, server


class AirflowFailException(Exception):
    pass


class AirflowRescheduleException(Exception):
    def __init__(self, reschedule_date: datetime.datetime) -> None:
        self.reschedule_date = reschedule_date


class Task:
    """What a decorated function is: called, it is part of a DAG."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **options: Any) -> Task:
        return self

    expand = expand_kwargs = __call__

    def __rshift__(self, after: Task) -> Task:
        return after


def stub(**modules: dict[str, Any]) -> dict[str, types.ModuleType]:
    made = {}
    for name, members in modules.items():
        name = name.replace("__", ".")
        made[name] = types.ModuleType(name)
        made[name].__dict__.update(members)
    return made


class Airflow(unittest.TestCase):
    def setUp(self) -> None:
        self.s = server("directory")
        cat = self.s.catalog()
        cat.collection("airflow", max_retries=1, retry_base_seconds=0.1)
        self.tiles = ["t1", "t2", "t3"]
        self.raises: dict[str, BaseException] = {}
        text = (ROOT / "docs" / "airflow.md").read_text()
        code = text.partition("```python\n")[2].partition("\n```")[0].replace('"landcover"', '"airflow"')  # of which another test counts the attempts
        self.wired: list[str] = []

        def dag(**options: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
            def run(function: Callable[[], None]) -> Callable[[], None]:
                return lambda: self.wired.append(function.__name__) or function()  # type: ignore[func-returns-value]
            return run

        modules = stub(
            airflow={}, airflow__decorators={"dag": dag, "task": lambda **options: Task},
            airflow__exceptions={"AirflowFailException": AirflowFailException, "AirflowRescheduleException": AirflowRescheduleException},
            geoml={}, geoml__tiles={"tiles_for_grid": lambda: self.tiles, "write_tile": self.write_tile})
        with mock.patch.dict(sys.modules, modules):
            self.dags: dict[str, Any] = {}
            exec(compile(code, "docs/airflow.md", "exec"), self.dags)
        here = {"CATALOGD_URL": self.s.url, "CATALOGD_TOKEN": TOKEN}
        patched = mock.patch.dict("os.environ", here)
        patched.start()
        self.addCleanup(patched.stop)

    def write_tile(self, tile_id: str, path: str, tags: dict[str, str]) -> None:
        if tile_id in self.raises:
            raise self.raises[tile_id]
        rasters.write(path, tags=tags)

    def run_task(self, name: str, *args: Any, **options: Any) -> Any:
        return self.dags[name].function(*args, **options)

    def test_wired(self) -> None:
        self.assertEqual(self.wired, ["landcover_tiles", "landcover_shards"])

    def test_tiles(self) -> None:
        day = "2026-08-04"
        self.raises = {"t2": ValueError("invalid geometry"), "t3": TimeoutError()}
        todo = {kwargs["tile_id"]: kwargs for kwargs in self.run_task("open_batch", ds=day)}
        self.assertEqual(sorted(todo), self.tiles)
        location = self.run_task("process_tile", **todo["t1"])
        self.assertGreater(rasters.checksum(location), 0)
        self.assertEqual(self.run_task("process_tile", **todo["t1"]), location)
        for _ in range(2):  # and what is quarantined is not begun
            with self.assertRaisesRegex(AirflowFailException, "invalid geometry"):
                self.run_task("process_tile", **todo["t2"])
        with self.assertRaises(AirflowRescheduleException) as caught:
            self.run_task("process_tile", **todo["t3"])
        self.assertLess(caught.exception.reschedule_date, datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=1))
        time.sleep(0.2)
        with self.assertRaises(AirflowFailException):  # the last try is spent
            self.run_task("process_tile", **todo["t3"])
        with self.s.catalog(owner="another").unit("airflow", "t4", version="1") as held:
            with self.assertRaises(AirflowRescheduleException):
                self.run_task("process_tile", None, "t4", {"version": "1"})
            rasters.write(held.path)
        with self.assertRaises(catalogd.Refused):  # Airflow's own retries
            self.run_task("process_tile", "no-batch", "t5", {"version": "1"})
        with self.assertRaisesRegex(AirflowFailException, "2 of 3 missing"):
            self.run_task("gate", ds=day)
        self.raises = {}
        self.assertEqual(self.s.catalog().batch(f"landcover-{day}").release("scenes mended"), 2)
        for kwargs in self.run_task("open_batch", ds=day):
            self.run_task("process_tile", **kwargs)
        self.assertEqual(self.run_task("gate", ds=day)["done"], 3)

    def test_shards(self) -> None:
        day = "2026-08-05"
        self.raises = {"t2": ValueError("invalid geometry")}
        self.run_task("open_batch", ds=day)
        self.assertEqual(self.run_task("work", 0, ds=day), {"made": 2, "failed": 1})
        self.assertEqual(self.run_task("work", 1, ds=day), {"made": 0, "failed": 0})
        with contextlib.suppress(AirflowFailException):
            self.run_task("gate", ds=day)
            self.fail("passed")
