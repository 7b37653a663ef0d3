"""Units on real servers: from the with to the row, and all the ways in which a body ends."""

from __future__ import annotations

import contextlib
import email.message
import errno
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import rasterio

from . import rasters
from .serving import SETTINGS, Server, catalogd, server
from .serving import TOKEN as ADMIN


class InvalidGeometryError(Exception):
    """catalogd knows it by its name."""


class ByStatus(Exception):
    """As of requests."""

    def __init__(self, status: int) -> None:
        self.response = types.SimpleNamespace(status_code=status)


def until(what: str, holds: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


class Cases:
    """All that holds whatever the store is."""

    kind: str
    s: Server
    cat: catalogd.Catalog
    collection: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.s = server(cls.kind)

    def setUp(self: Any) -> None:
        self.collection = self._testMethodName.removeprefix("test_")[:64]
        self.cat = self.s.catalog(owner="tests")
        self.cat.collection(self.collection)
        self.addCleanup(lambda: self.assertEqual(os.listdir(tempfile.gettempdir()), [], "private files are left"))

    def unit(self, tile: str = "t1", /, **members: Any) -> catalogd.Unit:
        return self.cat.unit(self.collection, tile, **{"version": "1", **members})

    def states(self) -> list[tuple[str, str]]:
        return self.s.attempts(self.collection)

    def failures(self) -> list[str]:
        return self.s.sql(f"SELECT coalesce(class, '-'), reason FROM catalog.failures WHERE collection_id = '{self.collection}' ORDER BY failed_at").splitlines()

    def pause(self, tile: str, seconds: float) -> None:
        """Has a tile that failed be due then, whatever was drawn."""
        self.s.sql(f"""UPDATE catalog.retries SET due_at = clock_timestamp() + interval '{seconds} second'
            WHERE collection_id = '{self.collection}' AND tile_id = '{tile}'""")

    def test_done_and_skip(self: Any) -> None:
        with self.unit(scene="a") as u:
            self.assertFalse(u.done)
            self.assertEqual((u.state, u.row), ("open", None))
            with self.assertRaises(catalogd.CatalogError):
                u.location
            rasters.write(u.path, tags=u.tags)
            want = rasters.checksum(u.path)
        self.assertEqual((u.state, u.done, u.current), ("done", True, True))
        self.assertEqual(rasters.checksum(u.location, SETTINGS[self.kind]["gdal"]), want)
        self.assertTrue(u.href.startswith(self.s.url + "/data/"), u.href)
        self.assertEqual(u.row["unit_key"], u.key)
        with self.unit(scene="a") as again:
            self.assertTrue(again.done)
            self.assertEqual(again.location, u.location)
            with self.assertRaisesRegex(catalogd.CatalogError, "u.done"):
                again.path
        self.assertEqual((again.state, again.current), ("skip", True))
        # Another version shows in its place.
        with self.unit(version="2", scene="a") as newer:
            rasters.write(newer.path, seed=2)
        with self.unit(scene="a") as older:
            self.assertFalse(older.current)
        self.assertEqual([state for _, state in self.states()], ["done", "done"])
        with self.assertRaisesRegex(catalogd.CatalogError, "once"), older:
            pass

    def test_tags_and_options(self: Any) -> None:
        import datetime

        u = self.unit().options(client_key="mine", properties={"cloud": 0.25}, acquired="2026-08-04T10:00:00Z")
        with u:
            rasters.write(u.path, tags=u.tags)
            with rasterio.open(u.path) as r:
                self.assertEqual(r.tags()["CATALOGD_UNIT_KEY"], u.key)
            u.options(acquired=(datetime.datetime(2026, 8, 4, 10, tzinfo=datetime.timezone.utc), "2026-08-04T11:00:00Z"), properties={"cloud": 0.5})
        self.assertEqual((u.row["client_key"], u.row["properties"]), ("mine", {"cloud": 0.5}))
        self.assertEqual((u.row["acquired_start"], u.row["acquired_end"]), ("2026-08-04T10:00:00Z", "2026-08-04T11:00:00Z"))
        with self.assertRaisesRegex(ValueError, "time zone"):
            self.unit("t2").options(acquired=datetime.datetime(2026, 8, 4))

    def test_given_up(self: Any) -> None:
        """What says nothing of the unit counts for nothing, and it can be had at once."""
        for raised in (KeyboardInterrupt(), SystemExit(3), OSError(errno.ENOSPC, "full"), catalogd.Held("another", 5), GeneratorExit()):
            u = self.unit()
            with self.assertRaises(type(raised)), u:
                raise raised
            self.assertEqual(u.state, "abandoned")
        with self.unit() as u:
            rasters.write(u.path)
        self.assertEqual(self.states(), [("t1", "abandoned")] * 5 + [("t1", "done")])
        self.assertEqual(self.failures(), [])

    def test_no_output(self: Any) -> None:
        with self.assertRaisesRegex(catalogd.NoOutput, "u.path"), self.unit():
            pass
        with self.assertRaises(catalogd.NoOutput), self.unit("t2") as u:
            os.mkdir(u.path)
        with contextlib.suppress(OSError):
            os.rmdir(u._path)
        self.assertEqual(self.failures(), ["deterministic|no_output", "deterministic|no_file"])

    def test_refused_output(self: Any) -> None:
        """A file that is refused is a deterministic failure, as the command line has it."""
        u = self.unit()
        with self.assertRaises(catalogd.Refused) as caught, u:
            rasters.write(u.path, size=512)
            os.truncate(u.path, os.path.getsize(u.path) // 2)
        self.assertEqual((caught.exception.status, caught.exception.code), (422, "truncated"))
        self.assertEqual((u.state, self.failures()), ("failed", ["deterministic|truncated"]))
        with self.assertRaises(catalogd.Refused) as caught, self.cat.unit("nowhere", "t1", version="1"):
            self.fail("entered")
        self.assertEqual(caught.exception.code, "unknown_collection")

    def worker(self, body: str, **env: str) -> subprocess.Popen[str]:
        """A process with a unit open, which has said so."""
        script = f"import os, signal, sys, threading, time, catalogd{', rasters' if 'rasters' in body else ''}\ncat = catalogd.Catalog(owner='worker', try_=int(os.environ.get('TRY', 0)))\n" + body
        return subprocess.Popen([sys.executable, "-B", "-c", script], env=self.s.env(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @contextlib.contextmanager
    def working(self: Any, body: str, **env: str) -> Iterator[subprocess.Popen[str]]:
        with self.worker(body, **env) as p:
            try:
                line = p.stdout.readline()
                if line != "open\n":
                    p.kill()
                    self.fail(f"{line!r} {p.stderr.read()}")
                yield p
            finally:
                p.kill()

    def test_kill_and_retry(self: Any) -> None:
        body = f"""
with cat.unit({self.collection!r}, "t1", version="1") as u:
    if not u.done:
        rasters.write(u.path)
        if not cat._try:
            print("open", flush=True)
            time.sleep(60)
print(u.state, flush=True)
"""
        scratch = tempfile.TemporaryDirectory()  # what SIGKILL leaves
        self.addCleanup(scratch.cleanup)
        with self.working(body, TMPDIR=scratch.name) as p:
            p.send_signal(signal.SIGKILL)
            self.assertEqual(p.wait(10), -signal.SIGKILL)
        with self.worker(body, TRY="1") as p:  # takes over at once
            out, err = p.communicate(timeout=30)
        self.assertEqual(out, "done\n", err)
        with self.unit() as u:
            self.assertTrue(u.done)
        # On a busy machine the lease has ended by itself.
        self.assertIn(self.states(), ([("t1", "replaced"), ("t1", "done")], [("t1", "expired"), ("t1", "done")]))

    def test_sigterm(self: Any) -> None:
        bodies = [
            ("main", f"""
with cat.unit({self.collection!r}, "main", version="1") as u:
    rasters.write(u.path)
    print("open", flush=True)
    time.sleep(60)
"""), ("threads", f"""
import concurrent.futures
opened = threading.Barrier(4)
def task(i):
    with cat.unit({self.collection!r}, f"threads{{i}}", version="1") as u:
        rasters.write(u.path)
        opened.wait()
        time.sleep(60)
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    tasks = [pool.submit(task, i) for i in range(9)]
    opened.wait()
    print("open", flush=True)
"""), ("pool", f"""
import concurrent.futures
def task(i):
    with cat.unit({self.collection!r}, "pool", version="1") as u:
        print("open", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
with concurrent.futures.ProcessPoolExecutor(1) as pool:
    try:
        pool.submit(task, 1).result()
    except concurrent.futures.BrokenExecutor:
        os.kill(os.getpid(), signal.SIGTERM)
""")]
        for where, body in bodies if self.kind == "directory" else bodies[:1]:
            with self.subTest(where), self.working(body) as p:
                p.send_signal(signal.SIGTERM) if where != "pool" else None
                self.assertEqual(p.wait(20), -signal.SIGTERM, p.stderr.read())
        begun = ["main", "pool", "threads0", "threads1", "threads2"] if self.kind == "directory" else ["main"]
        self.assertEqual(sorted(self.states()), [(tile, "abandoned") for tile in begun])
        self.assertEqual(self.failures(), [])

    def test_many(self: Any) -> None:
        """Threads share a catalog, which can be pickled, too."""
        import concurrent.futures

        cat = pickle.loads(pickle.dumps(self.cat))

        def task(i: int) -> str:
            with cat.unit(self.collection, f"t{i}", version="1") as u:
                if not u.done:
                    rasters.write(u.path, seed=i)
            return str(u.state)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(list(pool.map(task, range(40))), ["done"] * 40)
            self.assertEqual(list(pool.map(task, range(40))), ["skip"] * 40)

    def test_through_catalogd(self: Any) -> None:
        cat = self.s.catalog(upload=True)
        with cat.unit(self.collection, "t1", version="1") as u:
            self.assertTrue(u.path.startswith(tempfile.gettempdir()), u.path)
            rasters.write(u.path, size=1024)
            want = rasters.checksum(u.path)
        self.assertEqual(rasters.checksum(u.location, SETTINGS[self.kind]["gdal"]), want)

class OnDirectory(Cases, unittest.TestCase):
    """And what has nothing to do with the store."""

    kind = "directory"

    def test_failures(self: Any) -> None:
        class Odd(Exception):
            pass

        for tile, raised, want in [
            ("t1", ValueError("bad geometry"), "deterministic|ValueError"),
            ("t2", KeyError("B04"), "deterministic|KeyError"),
            ("t3", catalogd.PoisonTile("no B04", reason="missing_band"), "deterministic|missing_band"),
            ("t4", OSError(errno.EIO, "away"), "transient|OSError"),
            ("t5", TimeoutError(), "transient|TimeoutError"),
            ("t6", ConnectionResetError(), "transient|ConnectionResetError"),
            ("t7", Odd("?"), f"transient|{__name__}.OnDirectory.test_failures.<locals>.Odd"),
            ("t8", rasterio.errors.RasterioIOError("cut"), "transient|rasterio.errors.RasterioIOError"),
            ("t9", rasterio.errors.CRSError("which?"), "deterministic|rasterio.errors.CRSError"),
            ("t10", InvalidGeometryError("invalid geometry"), f"deterministic|{__name__}.InvalidGeometryError"),
            ("t11", urllib.error.HTTPError("http://api", 503, "away", email.message.Message(), None), "transient|http_503"),
            ("t12", ByStatus(404), "deterministic|http_404"),
        ]:
            u = self.unit(tile)
            with self.assertRaises(type(raised)) as caught, u:
                rasters.write(u.path)
                raise raised
            self.assertIs(caught.exception, raised)
            self.assertEqual((u.state, u.done), ("failed", False))
            self.assertFalse(os.path.exists(u._path))
            self.assertEqual(self.failures()[-1], want)
            assert u.failed is not None
            self.assertEqual((u.failed.class_ + "|" + u.failed.reason, u.failed.tries, u.failed.spent), (want, 1, True))
            if want.startswith("deterministic"):
                self.assertEqual((u.failed.next, u.failed.quarantined_as, u.failed.retry_after), ("quarantined", "deterministic", None))
            else:
                self.assertEqual((u.failed.next, u.failed.quarantined_as), ("retry", None))
                self.assertGreaterEqual(u.failed.retry_after, 0)
        said = self.s.sql(f"SELECT message FROM catalog.failures WHERE collection_id = '{self.collection}' AND tile_id = 't1'")
        self.assertIn("test_unit.py", said)
        self.assertTrue(said.endswith("ValueError: bad geometry"), said)

    def test_quarantined(self: Any) -> None:
        """What fails for good is tried once; what may pass, once its pause is over, and not for ever."""
        with self.assertRaises(ValueError), self.unit():
            raise ValueError("bad geometry\nin B04")
        with self.assertRaises(catalogd.Quarantined) as caught, self.unit().options(wait=True):
            self.fail("entered")
        q = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((q.reason, q.class_, q.message.splitlines()[-1]), ("ValueError", "deterministic", "in B04"))
        self.assertEqual(str(q), "quarantined: ValueError (deterministic): in B04")

        self.cat._call("PUT", "/v1/collections/" + self.collection, {"max_retries": 1, "retry_base_seconds": 60})
        with self.assertRaises(TimeoutError), self.unit("t2"):
            raise TimeoutError
        self.pause("t2", 30)
        with self.assertRaisesRegex(catalogd.Held, "1 of 2 tries spent") as held, self.unit("t2"):
            self.fail("entered")
        self.assertAlmostEqual(held.exception.retry_after, 30, delta=10)
        self.pause("t2", 0.5)
        again = self.unit("t2").options(wait=True)
        with self.assertRaises(TimeoutError), again:
            raise TimeoutError
        self.assertEqual((again.failed.next, again.failed.quarantined_as, again.failed.tries), ("quarantined", "exhausted", 2))

    def test_held_and_wait(self: Any) -> None:
        with self.unit() as u:
            with self.assertRaisesRegex(catalogd.Held, "try_=1 takes over") as held, self.unit():
                self.fail("entered")
            self.assertGreater(held.exception.retry_after, 0)
            # Nobody's lease runs out while he works, though it is six seconds long.
            time.sleep(7)
            with self.assertRaises(catalogd.Held), self.unit().options(owner="another", try_=9):
                self.fail("entered")
            seen: list[catalogd.Unit] = []

            def wait() -> None:
                with self.unit().options(wait=True, owner="patient") as other:
                    seen.append(other)

            waiting = threading.Thread(target=wait)
            waiting.start()
            rasters.write(u.path)
        waiting.join(30)
        self.assertEqual([other.state for other in seen], ["skip"])

    def test_lost(self: Any) -> None:
        """A higher try of the same owner takes over; the late one loses, and is told."""
        late = self.unit()
        with self.assertRaises(catalogd.Lost), late:
            rasters.write(late.path)
            with self.unit().options(owner="tests", try_=1) as u:
                rasters.write(u.path, seed=2)
            until("the loss to be noticed", lambda: late.lost)
        self.assertEqual((late.state, u.state), ("lost", "done"))
        late = self.unit("t2")
        with self.assertRaises(ValueError), late:  # which is no failure of the unit's
            with self.unit("t2").options(try_=1) as u:
                rasters.write(u.path, seed=2)
            until("the loss to be noticed", lambda: late.lost)
            raise ValueError
        self.assertEqual(self.failures(), [])
        late = self.unit("t3")
        with self.assertRaises(catalogd.Lost), late:  # before a heartbeat says so
            rasters.write(late.path)
            with self.unit("t3").options(try_=1) as u:
                rasters.write(u.path, seed=2)

    def test_own_sigterm(self: Any) -> None:
        """A program's own handler stays, and what it raises gives the attempt up."""
        body = f"""
def handler(*_):
    sys.exit(7)
signal.signal(signal.SIGTERM, handler)
with cat.unit({self.collection!r}, "t1", version="1") as u:
    print("open", flush=True)
    time.sleep(60)
"""
        with self.working(body) as p:
            p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(20), 7)
        self.assertEqual(self.states(), [("t1", "abandoned")])

    def test_server_killed(self: Any) -> None:
        """In the middle of the body, and for the end of it: it is waited for."""
        with self.assertLogs("catalogd", "WARNING") as logs:
            with self.unit() as u:
                rasters.write(u.path)
                self.s.kill()
                back = threading.Timer(1, self.s.start)
                back.start()
            back.join()
        self.assertEqual(u.state, "done")
        self.assertIn("waiting for catalogd", logs.output[0])
        self.s.kill()
        try:
            impatient = self.s.catalog(patience=0.5)
            with self.assertRaisesRegex(catalogd.Unavailable, "is it running"), impatient.unit(self.collection, "t2", version="1"):
                self.fail("entered")
            with self.assertRaises(catalogd.Unavailable):
                list(impatient.check([u.key]))
        finally:
            self.s.start()
        with self.assertRaises(ValueError), self.assertLogs("catalogd", "WARNING"):
            with self.s.catalog(patience=0.5, owner="x").unit(self.collection, "t3", version="1") as u:
                self.s.kill()
                try:
                    raise ValueError("which is what the caller sees")
                finally:
                    threading.Timer(1.5, self.s.start).start()
        until("the server", lambda: self.s.process.poll() is None and self.ready())

    def ready(self) -> bool:
        try:
            return bool(self.s.ask("/readyz"))
        except OSError:
            return False

    def test_token(self: Any) -> None:
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write("catd_" + "x" * 43)
            file.flush()
            cat = catalogd.Catalog(self.s.url, token_file=file.name)
            with self.assertRaises(catalogd.Refused) as caught, cat.unit(self.collection, "t1", version="1"):
                self.fail("entered")
            self.assertEqual(caught.exception.code, "unauthenticated")
            with cat.unit(self.collection, "t1", version="1") if self.replace(file) else contextlib.nullcontext() as u:
                rasters.write(u.path)
            self.assertEqual(u.state, "done")

    @staticmethod
    def replace(file: Any) -> bool:
        file.seek(0)
        file.write(ADMIN + "\n")
        file.truncate()
        file.flush()
        return True

    def test_collection(self: Any) -> None:
        made = self.cat.collection("made-here-" + self.kind, title="First", sparse_allowed=True)
        self.assertEqual((made["title"], made["sparse_allowed"]), ("First", True))
        self.assertEqual(self.cat.collection("made-here-" + self.kind, title="Second"), made)
        with self.assertRaises(catalogd.Refused) as caught:
            self.cat.collection("Not An Id")
        self.assertEqual(caught.exception.code, "invalid_collection")

    def test_shared(self) -> None:
        """The store's own staging is written to only where it reads as the store's."""
        with self.unit() as u:
            self.assertTrue(u.path.startswith(os.path.join(self.s.root, ".staging")), u.path)
            rasters.write(u.path)
        self.assertEqual(u.location, os.path.join(self.s.root, str(u._row()["object_key"])))
        sentinel = os.path.join(self.s.root, ".catalogd", "store.json")
        os.rename(sentinel, sentinel + ".away")
        try:
            self.assertEqual(u.location, u.href)
        finally:
            os.rename(sentinel + ".away", sentinel)

    def test_store_away(self) -> None:
        """A store that goes away says nothing of the unit."""
        sentinel = os.path.join(self.s.root, ".catalogd", "store.json")
        u = self.unit()
        try:
            with self.assertRaises(OSError), u:
                os.rename(sentinel, sentinel + ".away")
                raise OSError("no such file")
        finally:
            os.rename(sentinel + ".away", sentinel)
        self.assertEqual(self.failures(), [])
        self.assertEqual(u.state, "abandoned")


class OnS3(Cases, unittest.TestCase):
    kind = "s3"
