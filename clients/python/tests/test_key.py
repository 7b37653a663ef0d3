"""Unit keys agree with Go's."""

import json
import math
import pathlib
import pickle
import random
import struct
import subprocess
import unittest

from .serving import PROGRAM, ROOT, catalogd

VECTORS = json.loads((ROOT / "api" / "unit-key-vectors.json").read_text())


class Keys(unittest.TestCase):
    def test_vectors(self) -> None:
        for v in VECTORS["vectors"]:
            with self.subTest(v["name"]):
                canonical = catalogd.canonical_identity(v["identity_json"])
                whole = f'{{"collection":"{v["collection"]}","identity":{canonical},"tile_id":"{v["tile_id"]}"}}'
                self.assertEqual(whole, v["canonical"])
                for identity in (v["identity_json"], v["identity_json"].encode(), json.loads(v["identity_json"])):
                    self.assertEqual(catalogd.unit_key(v["collection"], v["tile_id"], identity), v["unit_key"])

    def test_refused(self) -> None:
        for r in VECTORS["refused"]:
            with self.subTest(r["name"]):
                with self.assertRaises(catalogd.Invalid) as caught:
                    catalogd.unit_key("landcover", "t1", r["identity_json"])
                self.assertEqual(caught.exception.code, "invalid_identity")
                if r["reason"] != "not JSON":  # where implementations may point elsewhere
                    self.assertEqual(caught.exception.field, r["pointer"])

    def test_refused_as_objects(self) -> None:
        deep: object = []
        for _ in range(31):
            deep = [deep]
        for name, value, field in [
            ("2^53+1", 2**53 + 1, "/identity/a"), ("vast", 10**5000, "/identity/a"), ("1e21", 1e21, "/identity/a"), ("NaN", math.nan, "/identity/a"),
            ("-inf", -math.inf, "/identity/a"), ("NUL", "x\0", "/identity/a"), ("lone surrogate", ["\udc00"], "/identity/a/0"),
            ("key of a number", {1: 2}, "/identity/a"), ("path", pathlib.Path("a"), "/identity/a"), ("bytes", b"a", "/identity/a"),
            ("set", {1}, "/identity/a"), ("33 levels", deep, "/identity/a" + "/0" * 31),
        ]:
            with self.subTest(name), self.assertRaises(catalogd.Invalid) as caught:
                catalogd.unit_key("landcover", "t1", {"version": "1", "a": value})
            self.assertEqual(caught.exception.field, field, name)
        for collection, tile_id, field in [("Landcover", "t1", "/collection"), ("current", "t1", "/collection"), ("a\n", "t1", "/collection"),
                                           ("a", "../t1", "/tile_id"), ("a", "", "/tile_id"), ("a", "b//c", "/tile_id"), ("a", "ä", "/tile_id")]:
            with self.assertRaises(ValueError) as refused:
                catalogd.unit_key(collection, tile_id, {"version": "1"})
            assert isinstance(refused.exception, catalogd.Invalid)
            self.assertEqual(refused.exception.field, field)

    def test_objects(self) -> None:
        import numpy

        class Text(str):
            pass

        same = {"version": "1", "window": [1, 2], "scale": 0.5, "on": True}
        other = {"version": Text("1"), "window": (numpy.int64(1), numpy.uint8(2)), "scale": numpy.float64(0.5), "on": True}
        self.assertEqual(catalogd.unit_key("a", "t", same), catalogd.unit_key("a", "t", other))
        self.assertNotEqual(catalogd.unit_key("a", "t", same), catalogd.unit_key("a", "t", {**same, "on": 1}))

    def test_numbers_as_go_writes_them(self) -> None:
        random.seed(2026)
        values: list[float] = [1e-7, 1.5e-7, 123e-20, 0.000001, 1e15, 4503599627370497.5, 5e-324, 2.2250738585072014e-308]
        while len(values) < 3000:
            f, = struct.unpack("<d", random.randbytes(8))
            if abs(f) < 2**53:
                values.append(f)
            values.append(random.uniform(-1e6, 1e6))
            values.append(round(random.uniform(-1e6, 1e6), random.randrange(8)))
            values.append(random.randrange(-2**53, 2**53))
        for part in (values[:900], values[900:1800], values[1800:2700]):
            identity = {"version": "1", "values": part}
            out = subprocess.run([PROGRAM, "key", "landcover", "t1", "--identity", json.dumps(identity)], capture_output=True, text=True, check=True)
            self.assertEqual(catalogd.unit_key("landcover", "t1", identity), out.stdout.strip())

    def test_keywords(self) -> None:
        cat = catalogd.Catalog("http://127.0.0.1:1", "")
        key = cat.key("a", "t", version="1", collection="x", tile_id="y", identity="z", self="s")
        self.assertEqual(key, catalogd.unit_key("a", "t", {"version": "1", "collection": "x", "tile_id": "y", "identity": "z", "self": "s"}))
        self.assertEqual(cat.key("a", "t", {"x": 1}, version="1"), cat.unit("a", "t", '{"version":"1","x":1.0}').key)
        with self.assertRaises(TypeError):
            cat.key("a", "t", {"version": "1"}, version="1")


class Errors(unittest.TestCase):
    def test_pickle(self) -> None:
        """They come back from another process as they were."""
        for e in (catalogd.Refused(422, "truncated", "cut", "/a"), catalogd.Unavailable("u", "why", 1, True), catalogd.Held("r", 2, "a"), catalogd.Quarantined("q"),
                  catalogd.PoisonTile("m", "r"), catalogd.Invalid("invalid_identity", "/identity", "d"), catalogd.Lost("x")):
            back = pickle.loads(pickle.dumps(e))
            self.assertEqual((type(back), str(back), back.__dict__), (type(e), str(e), e.__dict__))
