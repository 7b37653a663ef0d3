"""Batches: units are expected, claimed, done or not, and judged together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

from . import rasters
from .serving import CLIENT, catalogd, server
from .test_unit import until


class Batches(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.s = server("directory")

    def setUp(self) -> None:
        self.name = self._testMethodName.removeprefix("test_")
        self.cat = self.s.catalog(owner="tests")
        self.cat.collection(self.name, retry_base_seconds=0.1, retry_cap_seconds=1)
        self.batch = self.cat.open_batch(self.name, self.name)

    def expect(self, count: int) -> None:
        self.assertEqual(self.batch.add((f"t{i}", {"version": "1"}) for i in range(count))["added"], count)

    def counts(self, *names: str) -> Any:
        counts = self.batch.status()["counts"]
        return tuple(counts[name] for name in names) if len(names) > 1 else counts[names[0]]

    def make(self, u: catalogd.Unit) -> None:
        with u:
            rasters.write(u.path)

    def states(self) -> list[tuple[str, str]]:
        return self.s.attempts(self.name)

    def test_add(self) -> None:
        """Units said in every way; all can be sent again."""
        square = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]}

        class Shape:
            __geo_interface__ = square

        units: list[catalogd.ExpectedUnit] = [
            ("t1", {"version": "1"}), ("t2", '{"version":"1"}'), ("t3", {"version": "1"}, square), ("t4", {"version": "1"}, Shape()),
            self.cat.unit(self.name, "t5", version="1").options(client_key="five"), {"tile_id": "t6", "identity": {"version": "1"}, "geometry": square},
            ("t1", {"version": "1"}),
        ]
        self.assertEqual(self.batch.add(units), {"total": 7, "added": 6, "present": 1, "refused": 0, "expected": 6})
        self.assertEqual(self.cat.open_batch(self.name, self.name).add(units), {"total": 7, "added": 0, "present": 7, "refused": 0, "expected": 6})
        self.assertEqual(self.s.sql(f"SELECT count(geom) FROM catalog.batch_units JOIN catalog.units USING (unit_key) WHERE collection_id = '{self.name}'"), "3")
        self.assertEqual(self.batch.add([])["total"], 0)

    def test_refused(self) -> None:
        """Those refused are named, by their places; the others are added."""
        bad: list[catalogd.ExpectedUnit] = [("t1", {"version": "1"}), ("../t2", {"version": "1"}), ("t3", {"version": "1", "n": 2**60}), ("t4", {})]
        with mock.patch.object(catalogd, "_ADD_UNITS", 3), self.assertRaises(catalogd.NotAdded) as caught:
            self.batch.add([*bad, ("t5", {"version": "1"})])
        e = caught.exception
        self.assertEqual((e.refused, [said["line"] for said in e.errors]), (3, [2, 3, 4]))
        self.assertRegex(str(e), "lacks 3 units that were refused: unit 2: .*invalid_tile_id.*; unit 3: .*; unit 4: ")
        self.assertEqual(self.counts("expected"), 2)
        with self.assertRaises(catalogd.Refused) as other:
            self.cat.open_batch("another", "nowhere")
        self.assertEqual(other.exception.code, "unknown_collection")
        for ask in (self.cat.batch("nowhere").status, self.cat.batch("nowhere").claim, lambda: list(self.cat.batch("nowhere").pending()), self.cat.batch("nowhere").gate):
            with self.assertRaises(catalogd.Refused) as other:
                ask()
            self.assertEqual(other.exception.code, "unknown_batch")

    def test_many(self) -> None:
        """A generator is not held, nor is the list of what is pending."""
        tracemalloc.start()
        with mock.patch.object(catalogd, "_ADD_UNITS", 500):
            self.expect(5000)
        pending = self.batch.pending()
        first = next(pending)
        self.assertEqual((first.collection, first.identity), (self.name, {"version": "1"}))
        self.assertEqual(sum(1 for _ in pending), 4999)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        self.assertLess(most, 1 << 20)

    def test_server_killed_while_adding(self) -> None:
        """What was being sent is sent again."""
        def units() -> Iterator[catalogd.ExpectedUnit]:
            for i in range(1000):
                if i == 500:
                    self.s.kill()
                    threading.Timer(0.5, self.s.start).start()
                yield f"t{i}", {"version": "1"}

        with mock.patch.object(catalogd, "_ADD_UNITS", 100):
            self.assertEqual(self.batch.add(units())["expected"], 1000)

    def test_pending_cut_off(self) -> None:
        self.expect(3)
        lines = catalogd._lines

        def cut(response: Any) -> Any:
            return list(lines(response))[:-1]

        with mock.patch.object(catalogd, "_lines", cut), self.assertRaisesRegex(catalogd.Unavailable, "cut off after 3 units"):
            list(self.batch.pending())

    def test_per_tile(self) -> None:
        """A task for each tile says which batch it is for, which is no part of the identity."""
        self.expect(1)
        u, = self.batch.pending()
        again = self.cat.unit(self.name, u.tile_id, u.identity).options(batch=self.name)
        self.assertEqual(again.key, u.key)
        self.make(again)
        self.assertEqual(self.counts("done", "pending"), (1, 0))
        with self.assertRaises(catalogd.Refused) as caught, self.cat.unit(self.name, "t9", version="1").options(batch=self.batch):
            self.fail("entered")
        self.assertEqual(caught.exception.code, "not_in_batch")

    def test_claim(self) -> None:
        self.expect(5)
        shard = self.batch.claim(3)
        self.assertEqual((len(shard), {u.state for u in shard}), (3, {"claimed"}))
        self.assertIn("CATALOGD_UNIT_KEY", shard[0].tags)
        others = self.batch.claim(9, owner="another")
        self.assertEqual(len({u.key for u in [*shard, *others]}), 5, "a unit went to two")
        self.assertEqual((list(self.batch.claim()), self.counts("running")), ([], 5))
        # One thread keeps all the leases, in one request.
        with mock.patch.object(catalogd.Catalog, "_call", autospec=True, side_effect=catalogd.Catalog._call) as calls:
            beat = until("a heartbeat", lambda: [call.args[3]["attempts"] for call in calls.mock_calls if call.args[2] == "/v1/heartbeats"])[0]
        self.assertLessEqual({u._attempt["attempt_id"] for u in [*shard, *others] if u._attempt}, set(beat))
        self.assertEqual(sum(t.name == "catalogd-heartbeat" for t in threading.enumerate()), len(catalogd._keepers))
        with mock.patch.object(catalogd.Catalog, "_call", autospec=True, side_effect=catalogd.Catalog._call) as calls, shard[0] as u:
            self.assertEqual((calls.call_count, u.state, u.done), (0, "open", False), "entering asked something")
            rasters.write(u.path, tags=u.tags)
        self.assertEqual(shard[0].state, "done")
        with self.assertRaises(ValueError), shard[1]:
            raise ValueError("invalid geometry")
        assert shard[1].failed is not None
        self.assertEqual(shard[1].failed.next, "quarantined")
        with self.assertRaisesRegex(catalogd.CatalogError, "once"), shard[0]:
            self.fail("entered")
        shard.give_back()
        with others:
            pass
        self.assertEqual([u.state for u in shard] + [u.state for u in others], ["done", "failed"] + ["abandoned"] * 3)
        self.assertEqual(self.counts("done", "quarantined", "pending", "running"), (1, 1, 3, 0))

    def test_claim_answer_lost(self) -> None:
        """It is asked again with the same request_id, and nothing is held by nobody."""
        self.expect(4)
        real, lost = catalogd.Catalog._once, [True]

        def once(cat: Any, method: str, path: str, *rest: Any) -> Any:
            answer = real(cat, method, path, *rest)
            if path.endswith("/claim") and lost.pop() if lost else False:
                raise catalogd._NoAnswer("cut")
            return answer

        with mock.patch.object(catalogd.Catalog, "_once", once), self.batch.claim(3) as shard:
            self.assertEqual((len(shard), lost), (3, []))
            self.assertEqual(self.counts("running", "pending"), (3, 1))

    def test_lost_before_entered(self) -> None:
        self.expect(1)
        u, = self.batch.claim()
        assert u._attempt is not None
        self.cat._call("POST", f"/v1/attempts/{u._attempt['attempt_id']}/abandon")
        lost = catalogd._keeper(self.cat).hold(u._attempt)
        until("the loss to be noticed", lost.is_set)
        with self.assertRaisesRegex(catalogd.Lost, "claim fewer"), u:
            self.fail("entered")
        self.make(self.batch.claim()[0])

    def test_units(self) -> None:
        """Every unit once, what may pass again after its pause, and an end when nothing is left."""
        self.expect(12)
        tried: list[str] = []

        def work(owner: str) -> None:
            for u in self.cat.batch(self.name).units(max=2, owner=owner):
                tried.append(u.tile_id)
                with contextlib.suppress(OSError, ValueError), u:
                    if u.tile_id == "t3" and tried.count("t3") < 3:
                        raise TimeoutError
                    if u.tile_id == "t4":
                        raise ValueError
                    rasters.write(u.path)

        workers = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(3)]
        for w in workers:
            w.start()
        for w in workers:
            w.join(60)
        self.assertEqual(sorted(tried), sorted([f"t{i}" for i in range(12)] + ["t3"] * 2))
        self.assertEqual(self.counts("done", "quarantined"), (11, 1))
        self.assertEqual(list(self.batch.units()), [])

    def test_loop_left(self) -> None:
        """What was claimed and not entered is due again."""
        self.expect(6)
        with self.assertRaises(TimeoutError):
            for u in self.batch.units(max=4):
                with u:
                    raise TimeoutError
        self.assertEqual((self.counts("running"), self.counts("pending") + self.counts("retrying")), (0, 6))
        self.assertEqual([state for _, state in self.states()].count("abandoned"), 3)

    def test_server_away(self) -> None:
        """It is waited for once when many are given back; their leases end by themselves."""
        self.expect(5)
        shard = self.s.catalog(patience=1).batch(self.name).claim()
        self.s.kill()
        try:
            with self.assertLogs("catalogd", "WARNING") as logs:
                shard.give_back()
        finally:
            self.s.start()
        self.assertEqual("\n".join(logs.output).count("could not be given up"), 1)
        self.assertEqual([u.state for u in shard], ["unknown"] * 5)

    def test_process_ends(self) -> None:
        """It gives back what it has not entered: by itself, and by SIGTERM."""
        self.expect(3)
        script = f"""
import sys, time, catalogd
cat = catalogd.Catalog(owner="worker")
shard = cat.batch({self.name!r}).claim()
with shard[0] as u:
    print(len(shard), flush=True)
    time.sleep(float(sys.argv[1]))
    sys.exit(0)
"""
        for seconds, end in (("0", 0), ("60", -signal.SIGTERM)):
            with subprocess.Popen([sys.executable, "-B", "-c", script, seconds], env=self.s.env(), stdout=subprocess.PIPE, text=True) as p:
                assert p.stdout is not None
                self.assertEqual(p.stdout.readline(), "3\n")
                if end:
                    p.send_signal(signal.SIGTERM)
                self.assertEqual(p.wait(20), end)
            self.assertEqual(self.counts("running", "pending"), (0, 3))
        self.assertEqual([state for _, state in self.states()], ["abandoned"] * 6)

    def test_gate(self) -> None:
        self.expect(4)
        for u in self.batch.units():
            with contextlib.suppress(ValueError), u:
                if u.tile_id == "t2":
                    raise ValueError("invalid geometry")
                rasters.write(u.path)
        gate = self.batch.gate(max_missing_frac=0.2)
        self.assertFalse(gate)
        self.assertEqual((gate.state, gate.ended, gate.reasons), ("failed", True, ["too_many_missing"]))
        self.assertEqual(gate.figures["missing_frac"], 0.25)
        self.assertEqual([(o["tile_id"], o["status"]) for o in gate.offenders], [("t2", "quarantined")])
        self.assertEqual(str(gate), "batch gate failed (too_many_missing): 1 of 4 missing (0.25000), 1 quarantined, 0 lost")
        self.assertTrue(self.cat.gate("gate", max_missing_frac=0.25, storage="sample", sample_size=2))
        self.assertTrue(self.cat.gate(self.batch, max_missing_frac=0.25, max_quarantined=1, storage="none"))
        self.assertEqual(self.batch.gate(0.25, 0).reasons, ["too_many_quarantined"])
        self.assertEqual(self.batch.status()["gate"]["reasons"], ["too_many_quarantined"])
        asked = self.batch.gate(0.25, wait=False)
        self.assertEqual(until("the verdict", lambda: self.batch.status()["gate"]["state"] == "passed" and asked.id), self.batch.status()["gate"]["gate_id"])
        with mock.patch.object(catalogd, "_GATE_WAIT", 0):  # it is asked for again, then
            self.assertTrue(self.batch.gate(0.25))

    def test_not_judged(self) -> None:
        """A store that is away says nothing of the batch."""
        self.expect(1)
        u, = self.batch.claim()
        self.make(u)
        away = [os.path.join(self.s.root, ".catalogd", "store.json"), u.location]
        for path in away:
            os.rename(path, path + ".away")
        try:
            with self.assertRaisesRegex(catalogd.NotJudged, "could not be judged: .*store"):
                self.batch.gate()
        finally:
            for path in away:
                os.rename(path + ".away", path)
        self.assertTrue(self.batch.gate())

    def test_release(self) -> None:
        self.expect(2)
        for u, e in zip(self.batch.claim(), (ValueError, KeyError)):
            with contextlib.suppress(ValueError, KeyError), u:
                raise e
        self.assertEqual((self.batch.release("mended", reason="KeyError"), self.batch.release("mended", class_="transient")), (1, 0))
        self.assertEqual((self.batch.release("mended"), self.counts("pending")), (1, 2))


class Rerun(unittest.TestCase):
    """The articles' job, killed twice: what is run again costs what is not done."""

    def test_landcover(self) -> None:
        s = server("directory")
        name, tiles, failures = "nightly-0804", 300, 10
        with tempfile.TemporaryDirectory() as dir:
            out = subprocess.run(
                [sys.executable, "-B", str(CLIENT / "examples" / "rerun.py"), "--tiles", str(tiles), "--failures", str(failures), "--workers", "3"],
                env=s.env(TMPDIR=dir), capture_output=True, text=True, timeout=300)
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
        self.assertEqual(out.stdout.count("killed, "), 2)
        self.assertRegex(out.stdout, r"10 of 300 missing \(0\.03333\), 10 quarantined")
        self.assertRegex(out.stdout, rf"{failures} tiles released\n.*\n{failures} tiles computed, {tiles - failures} skipped, [0-9.]+ s; computing all 300 at ")
        # No tile was made twice, and what fails for good was tried once.
        self.assertEqual([state for _, state in s.attempts("landcover")].count("done"), tiles)
        failed = s.sql("SELECT class, reason, count(DISTINCT tile_id), count(*) FROM catalog.failures WHERE collection_id = 'landcover' GROUP BY 1, 2 ORDER BY 1")
        self.assertEqual(failed, "deterministic|ValueError|9|9\ntransient|TimeoutError|1|4")
        gates = s.sql(f"SELECT g.state, array_to_string(g.reasons, ',') FROM catalog.gates g JOIN catalog.batches b USING (batch_id) WHERE b.name = '{name}' ORDER BY g.created_at")
        self.assertEqual(gates, "passed|\nfailed|too_many_missing\npassed|")
