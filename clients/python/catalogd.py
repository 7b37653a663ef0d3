"""catalogd, a catalogue of the rasters that batch pipelines write, seen from a task.

    cat = Catalog()                                   # CATALOGD_URL, CATALOGD_TOKEN
    with cat.unit("warped", "3_7", version="2", src=src, dst_crs="EPSG:3857") as u:
        if u.done:
            return u.location
        with rasterio.open(u.path, "w", **profile) as dst:
            dst.write(data)
            dst.update_tags(**u.tags)
    return u.location

A batch is a set of expected units, worked on by as many processes as there are, and judged together:

    batch = cat.open_batch("nightly-0804", "landcover")
    batch.add((tile, {"version": "v7", "scene": scene}) for tile in tiles)
    for u in batch.units():                           # in each process: no unit goes to two
        with u:
            ...
    if not batch.gate(max_missing_frac=0.002):
        ...

One file, of the standard library alone, for Python 3.10 and later: install it, or copy it
into a worker's image.

Its rule: an answer that did not come is an unknown outcome, and the same request is sent
again, which every request of the step allows.
"""

from __future__ import annotations

import atexit
import base64
import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import errno
import getpass
import hashlib
import http.client
import json
import logging
import math
import numbers
import operator
import os
import random
import re
import select
import shutil
import signal
import socket
import ssl
import stat
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import FrameType, TracebackType
from typing import Any, Literal, Optional, TypeVar, Union

__version__ = "0.1.0"

__all__ = [
    "Batch", "Catalog", "CatalogError", "Checked", "Failed", "Gate", "Held", "Invalid", "Lost", "NoOutput", "NotAdded",
    "NotJudged", "PoisonTile", "Quarantined", "Refused", "Shard", "Unavailable", "Unit", "canonical_identity", "unit_key",
]

_log = logging.getLogger("catalogd")

_T = TypeVar("_T")

#: What decides the bytes of an output: a mapping, or a JSON object as text.
Identity = Union[Mapping[str, Any], str, bytes]

#: A unit to check: its key; collection, tile id and identity; a `Unit`; or the contract's UnitRef.
UnitRef = Union[str, tuple[str, str, Identity], "Unit", Mapping[str, Any]]

#: A unit that a batch expects: tile id and identity, and GeoJSON or a shape of where it is to be, if that is
#: known; a `Unit`; or the contract's ExpectedUnit.
ExpectedUnit = Union[tuple[str, Identity], tuple[str, Identity, Any], "Unit", Mapping[str, Any]]


# Errors


class CatalogError(Exception):
    """What this module raises, but for errors of files."""


class Invalid(CatalogError, ValueError):
    """A collection, tile id or identity has no unit key. `field` is the JSON pointer of what is at fault."""

    def __init__(self, code: str, field: str, detail: str) -> None:
        super().__init__(code, field, detail)
        self.code, self.field, self.detail = code, field, detail

    def __str__(self) -> str:
        return f"{self.detail} ({self.code} at {self.field})"


class Refused(CatalogError):
    """catalogd said no, and why: an RFC 9457 problem. Branch on `code`, which is stable."""

    def __init__(self, status: int, code: str, detail: str, field: str = "") -> None:
        super().__init__(status, code, detail, field)
        self.status, self.code, self.detail, self.field = status, code, detail, field
        self._retry_after = 0.0

    def __str__(self) -> str:
        if not self.code:
            return self.detail
        return f"{self.detail} ({self.code}{' at ' + self.field if self.field else ''})"


class Unavailable(CatalogError):
    """No answer from catalogd, or from a `store`, for as long as patience went. Nothing is known to have failed."""

    def __init__(self, url: str, why: str, after: float = 0, store: bool = False) -> None:
        super().__init__(url, why, after, store)
        self.url, self.why, self.after, self.store = url, why, after, store

    def __str__(self) -> str:
        tried = f" in {self.after:.0f} s" if self.after else ""
        if self.store:
            return f"the store at {self.url} did not take the output{tried}: {self.why}"
        return f"no answer from catalogd at {self.url}{tried}: {self.why}; is it running, and is CATALOGD_URL right?"


class Held(CatalogError):
    """The unit is not to be tried now: try again in `retry_after` seconds.

    Another owner works on it, its output is being promoted, or it failed and has its pause.
    """

    def __init__(self, reason: str, retry_after: float, advice: str = "") -> None:
        super().__init__(reason, retry_after, advice)
        self.reason, self.retry_after, self.advice = reason, retry_after, advice

    def __str__(self) -> str:
        return f"not now: {self.reason}; {self.advice or f'try again in {self.retry_after:.0f} s, or wait with wait=True'}"


class Quarantined(CatalogError):
    """The unit is not to be tried, until it is released: a task fails without a retry.

    `reason`, `class_` ("deterministic" or "transient") and `message` are those of its last failure. A unit whose
    output was withdrawn has the reason "withdrawn" alone.
    """

    def __init__(self, reason: str, class_: str = "", message: str = "") -> None:
        super().__init__(reason, class_, message)
        self.reason, self.class_, self.message = reason, class_, message

    def __str__(self) -> str:
        last = self.message.strip().rpartition("\n")[2]
        return f"quarantined: {self.reason}" + (f" ({self.class_})" if self.class_ else "") + (f": {last}" if last else "")


class Lost(CatalogError):
    """Another attempt took the unit over, or the lease ran out: this one's output counts for nothing."""


class NoOutput(CatalogError):
    """The body ended well, and left no file at `Unit.path`."""


class NotAdded(CatalogError):
    """Of the units that were added to a batch some were refused, and it expects too few: add them again, mended.

    `refused` is how many, `errors` has what the contract calls a RefusedUnit of the first hundred; `line` counts
    the units that were given, from 1. What was not refused has been added.
    """

    def __init__(self, batch: str, refused: int, errors: list[dict[str, Any]]) -> None:
        super().__init__(batch, refused, errors)
        self.batch, self.refused, self.errors = batch, refused, errors

    def __str__(self) -> str:
        first = "; ".join(f"unit {e['line']}: {e['detail']} ({e['code']}{' at ' + e['field'] if e.get('field') else ''})" for e in self.errors[:3])
        return f"batch {self.batch} lacks {self.refused} {'unit that was' if self.refused == 1 else 'units that were'} refused: {first}" + ("; …" if self.refused > 3 else "")


class NotJudged(CatalogError):
    """A batch could not be judged, for its store is away, say. Nothing is said of it: ask again."""


class PoisonTile(Exception):
    """To be raised by a task: what fails here will fail again. `reason` is short and stable."""

    def __init__(self, message: str, reason: str = "poison_tile") -> None:
        super().__init__(message, reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[0])


class _NoAnswer(Exception):
    """A request got no answer that can be read; its outcome is unknown."""


class _Renewed(Exception):
    """What a request needs is another by now: send it again, at once."""


# Unit keys

_MAX_IDENTITY_BYTES = 64 << 10
_MAX_IDENTITY_DEPTH = 32
_MAX_IDENTITY_MEMBERS = 1000
_MAX_VERSION_BYTES = 128
_MAX_EXACT = 1 << 53

_COLLECTION_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TILE_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def unit_key(collection: str, tile_id: str, identity: Identity) -> str:
    """The key of a unit of work, as every implementation derives it; asks no server.

    It is the RFC 9562 UUIDv8 made of the first 16 octets of SHA-256 over the RFC 8785 canonical
    JSON of `{"collection", "identity", "tile_id"}`. Raises `Invalid`.
    """
    return _key(collection, tile_id, canonical_identity(identity))


def canonical_identity(identity: Identity) -> str:
    """The RFC 8785 form of an identity. Raises `Invalid` for what JSON cannot carry exactly."""
    canonical = _Canonical()
    if isinstance(identity, (str, bytes)):
        _check_size(identity if isinstance(identity, bytes) else identity.encode("utf-8", "surrogatepass"))
        value = _read_json(identity)
    else:
        value = identity
    if not isinstance(value, (Mapping, _Members)):
        raise canonical.refuse('identity is not a JSON object: send an object with a text member "version"')
    text = canonical.value(value)
    if not canonical.version:
        canonical.path.append("version")
        raise canonical.refuse(
            'identity has no version: add a text member "version", and bump it whenever the output\'s bytes could differ')
    _check_size(text.encode())
    return text


def _key(collection: str, tile_id: str, canonical: str) -> str:
    if not _COLLECTION_ID.fullmatch(collection) or collection == "current":
        raise Invalid("invalid_collection", "/collection",
                      f"collection id {collection!r} does not match [a-z0-9][a-z0-9_-]*, of at most 64, or is \"current\"")
    if not _TILE_ID.fullmatch(tile_id):
        raise Invalid("invalid_tile_id", "/tile_id",
                      f"tile id {tile_id!r} is not segments of [A-Za-z0-9._-] joined by /, none empty or starting with a dot")
    # Canonical as it stands: neither kind of id has a character to escape.
    text = f'{{"collection":"{collection}","identity":{canonical},"tile_id":"{tile_id}"}}'
    octets = bytearray(hashlib.sha256(text.encode()).digest()[:16])
    octets[6] = octets[6] & 0x0F | 0x80
    octets[8] = octets[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(octets)))


class _Members(list[tuple[str, Any]]):
    """A JSON object as it was written, its keys perhaps twice."""


class _Number(str):
    """A JSON number as it was written."""


class _Constant(str):
    """NaN and its like, which JSON does not have."""


def _read_json(text: str | bytes) -> Any:
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, object_pairs_hook=_Members, parse_int=_Number, parse_float=_Number, parse_constant=_Constant)
    except RecursionError:
        raise Invalid("invalid_identity", "/identity", f"identity is nested deeper than {_MAX_IDENTITY_DEPTH} levels: flatten it") from None
    except ValueError as e:
        raise Invalid("invalid_identity", "/identity", f"not JSON: {e}") from None


def _check_size(text: bytes) -> None:
    if len(text) > _MAX_IDENTITY_BYTES:
        raise Invalid("invalid_identity", "/identity",
                      f"identity is {len(text)} bytes long; at most {_MAX_IDENTITY_BYTES}: send a digest in place of long lists")


class _Canonical:
    """Writes one identity in its RFC 8785 form, and refuses what readers of JSON read differently."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.members = 0
        self.version = ""

    def refuse(self, detail: str) -> Invalid:
        return Invalid("invalid_identity", "/identity" + "".join("/" + _pointer_token(t) for t in self.path), detail)

    def value(self, v: Any) -> str:
        if v is None:
            return "null"
        if isinstance(v, bool):
            return "true" if v else "false"
        if isinstance(v, _Constant):
            raise self.refuse(f"{v} is not a number of JSON: send it as text, or null")
        if isinstance(v, _Number):
            return self.literal(v)
        if isinstance(v, str):
            self.check_text(v, "text")
            return _quote(v)
        if isinstance(v, _Members):
            return self.object(v)
        if isinstance(v, Mapping):
            return self.object(v.items())
        if isinstance(v, (list, tuple)):
            return self.array(v)
        if isinstance(v, numbers.Integral):  # NumPy's, too
            i = operator.index(v)
            if abs(i) > _MAX_EXACT:
                raise self.refuse(f"number {_abbreviate(str(i) if abs(i) < 1 << 200 else hex(i))} is beyond ±2^53, where readers of JSON round: send it as text")
            return str(i)
        if isinstance(v, float):
            if not math.isfinite(v):
                raise self.refuse(f"{float(v)} is not a number of JSON: send it as text, or null")
            if abs(v) > _MAX_EXACT:
                raise self.refuse(f"number {float(v)!r} is beyond ±2^53, where readers of JSON round: send it as text")
            return _format_number(v)
        kind = type(v)
        raise self.refuse(f"a {kind.__module__}.{kind.__qualname__} is nothing that JSON has: send it as text, number, list or object")

    def literal(self, text: str) -> str:
        f = float(text)
        if abs(f) > _MAX_EXACT or abs(f) == _MAX_EXACT and Decimal(text) != Decimal(f):
            raise self.refuse(f"number {_abbreviate(text)} is beyond ±2^53, where readers of JSON round: send it as text")
        if f == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
            raise self.refuse(f"number {_abbreviate(text)} is too small for a float64, and would be read as 0: send it as text")
        return _format_number(f)

    def object(self, members: Iterable[tuple[Any, Any]]) -> str:
        self.check_depth()
        written: dict[str, str] = {}
        for key, v in members:
            if not isinstance(key, str):
                raise self.refuse(f"key {key!r} is not text: send it as text")
            key = str.__str__(key)
            self.path.append(key)
            self.check_text(key, "key")
            if key in written:
                raise self.refuse("key appears twice in its object: remove one of the two")
            self.members += 1
            if self.members > _MAX_IDENTITY_MEMBERS:
                raise self.refuse(f"identity has more than {_MAX_IDENTITY_MEMBERS} members: send a digest in place of large objects")
            if key == "version" and len(self.path) == 1:
                self.check_version(v)
            written[key] = self.value(v)
            self.path.pop()
        ordered = sorted(written, key=lambda k: k.encode("utf-16-be"))
        return "{" + ",".join(_quote(k) + ":" + written[k] for k in ordered) + "}"

    def array(self, items: Sequence[Any]) -> str:
        self.check_depth()
        written = []
        for i, v in enumerate(items):
            self.path.append(str(i))
            written.append(self.value(v))
            self.path.pop()
        return "[" + ",".join(written) + "]"

    def check_depth(self) -> None:
        if len(self.path) == _MAX_IDENTITY_DEPTH:
            raise self.refuse(f"identity is nested deeper than {_MAX_IDENTITY_DEPTH} levels: flatten it, or send the inner part as text")

    def check_text(self, text: str, what: str) -> None:
        lone = re.search("[\ud800-\udfff]", text)
        if lone:
            raise self.refuse(f"{what} holds the lone surrogate \\u{ord(lone[0]):04x}: send well-formed Unicode, or bytes as hexadecimal text")
        if "\0" in text:
            raise self.refuse(f"{what} holds NUL (U+0000), which PostgreSQL cannot store: remove it, or send bytes as hexadecimal text")

    def check_version(self, v: Any) -> None:
        if not isinstance(v, str) or isinstance(v, (_Number, _Constant)):
            raise self.refuse('version is not text: put it in quotes, as in "2026.1"')
        self.check_text(v, "version")
        if not v:
            raise self.refuse('version is empty: name what would change the output\'s bytes, as in "2026.1"')
        if len(v.encode()) > _MAX_VERSION_BYTES:
            raise self.refuse(f"version is {len(v.encode())} bytes long; at most {_MAX_VERSION_BYTES}: send a digest, or move parts of it to members of their own")
        if re.search("[\0-\x1f\x7f-\x9f]", v):
            raise self.refuse(f"version {v!r} holds a control character: remove it")
        self.version = v


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _quote(text: str) -> str:
    """RFC 8785, section 3.2.2.2."""
    def escape(m: re.Match[str]) -> str:
        c: str = m[0]
        return _ESCAPES.get(c) or f"\\u{ord(c):04x}"
    return '"' + re.sub(r'["\\\x00-\x1f]', escape, text) + '"'


def _format_number(f: float) -> str:
    """Number::toString of ECMAScript (RFC 8785, section 3.2.2.3), for finite numbers."""
    if f == 0:
        return "0"
    sign = "-" if f < 0 else ""
    mantissa, _, exponent = float.__repr__(abs(float(f))).partition("e")  # the shortest digits that read back as f
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0)  # where it stands in whole + fraction
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    e = f"e{point - 1:+d}"
    return sign + digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + e


def _pointer_token(token: str) -> str:
    """A token of an RFC 6901 pointer, for people: what does not print is escaped as in JSON."""
    def show(c: str) -> str:
        if c == "~":
            return "~0"
        if c == "/":
            return "~1"
        if c.isprintable():
            return c
        units = c.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
    return "".join(map(show, token[:200])) + ("…" if len(token) > 200 else "")


def _abbreviate(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"


# Who asks


def _find_origin(env: Mapping[str, str]) -> tuple[str, int]:
    """Owner and try, from what the orchestrator put into the environment, the innermost first."""
    for look in (_airflow, _dagster, _celery, _slurm, _kubernetes):
        owner, number = look(env)
        if owner:
            n = int(number) if re.fullmatch(r"\+?[0-9]{1,10}", number) else 0
            return _shorten(owner), n if n <= 1 << 30 else 0
    return _shorten(_here()), 0


def _airflow(env: Mapping[str, str]) -> tuple[str, str]:
    dag, task = env.get("AIRFLOW_CTX_DAG_ID"), env.get("AIRFLOW_CTX_TASK_ID")
    if not dag or not task:
        return "", ""
    owner = "airflow:" + _path(dag, env.get("AIRFLOW_CTX_DAG_RUN_ID"), task)
    index = env.get("AIRFLOW_CTX_MAP_INDEX")  # older ones do not export it
    if index and index != "-1":
        owner += f"[{index}]"
    return owner, env.get("AIRFLOW_CTX_TRY_NUMBER", "")


def _dagster(env: Mapping[str, str]) -> tuple[str, str]:
    pipes = _dagster_pipes(env.get("DAGSTER_PIPES_CONTEXT", ""))
    if pipes:
        parts = [pipes.get("job_name"), pipes["run_id"], *(pipes.get("asset_keys") or []), pipes.get("partition_key")]
        return "dagster:" + _path(*parts), str(pipes.get("retry_number") or 0)
    job, step = env.get("DAGSTER_RUN_JOB_NAME"), env.get("DAGSTER_RUN_STEP_KEY")
    if job and step:
        return "dagster:" + _path(job, env.get("DAGSTER_RUN_ID"), step), env.get("DAGSTER_RETRY_NUMBER", "")
    return "", ""


def _dagster_pipes(param: str) -> dict[str, Any] | None:
    """The context of Dagster Pipes: base64 of zlib of JSON, which holds it or the path of a file that does."""
    most = 1 << 20
    try:
        where = json.loads(zlib.decompressobj().decompress(base64.b64decode(param, validate=True), most))
        data = where.get("data")
        if data is None and where.get("path"):
            with open(where["path"], encoding="utf-8") as f:
                data = json.loads(f.read(most))
        return data if isinstance(data, dict) and data.get("run_id") else None
    except (OSError, ValueError, zlib.error, AttributeError, TypeError):
        return None


def _celery(env: Mapping[str, str]) -> tuple[str, str]:
    task = env.get("CELERY_TASK_ID")
    return ("celery:" + task, env.get("CELERY_TASK_RETRIES", "")) if task else ("", "")


def _slurm(env: Mapping[str, str]) -> tuple[str, str]:
    job, array = env.get("SLURM_JOB_ID"), env.get("SLURM_ARRAY_JOB_ID")
    if array:
        job = array + "_" + env.get("SLURM_ARRAY_TASK_ID", "")
    if not job:
        return "", ""
    return "slurm:" + _path(env.get("SLURM_CLUSTER_NAME"), job, env.get("SLURM_PROCID")), env.get("SLURM_RESTART_COUNT", "")


def _kubernetes(env: Mapping[str, str]) -> tuple[str, str]:
    pod = env.get("POD_NAME") or env.get("HOSTNAME")
    if not env.get("KUBERNETES_SERVICE_HOST") or not pod:
        return "", ""
    namespace = env.get("POD_NAMESPACE")
    if not namespace:
        with contextlib.suppress(OSError), open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as f:
            namespace = f.read().strip()
    return "kubernetes:" + _path(namespace, pod), ""


def _here() -> str:
    try:
        import pwd

        name = pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        try:
            name = getpass.getuser()
        except Exception:
            name = "nobody"
    return f"{name}@{socket.gethostname() or 'localhost'}"


def _path(*parts: str | None) -> str:
    return "/".join(p for p in parts if p)


def _shorten(name: str) -> str:
    """Within the contract's 256 bytes, and different names different."""
    name = re.sub("[\ud800-\udfff]+", "_", name)  # what is not UTF-8 in an environment
    raw = "".join("_" if c < " " or c == "\x7f" else c for c in name).encode()
    if len(raw) <= 256:
        return raw.decode()
    return raw[: 256 - 17].decode("utf-8", "ignore") + "~" + hashlib.sha256(raw).hexdigest()[:16]


# HTTP

_ANSWER_WITHIN, _LEAST_WITHIN, _STEP_WITHIN = 60.0, 5.0, 15 * 60.0
_FIRST_PAUSE, _LAST_PAUSE, _LAST_STORE_PAUSE, _LAST_WAIT = 0.1, 1.0, 10.0, 5.0
_MAX_RETRY_AFTER, _MAX_FAILURES = 5.0, 3
_BLOCK = 256 << 10


def _connect(url: str, connect: float, within: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection for one request, through the environment's proxy if any, and the request's target."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    proxy = None
    if host != "localhost" and not host.startswith("127.") and host != "::1" and not urllib.request.proxy_bypass(parts.netloc):
        proxy = urllib.request.getproxies().get(parts.scheme)
    via = urllib.parse.urlsplit(proxy if "://" in proxy else "http://" + proxy) if proxy else parts
    tls = parts.scheme == "https"
    connection = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    c = connection(via.hostname or "", via.port or (3128 if proxy else 443 if tls else 80), timeout=connect)
    if proxy:
        headers = {}
        if via.username:
            secret = f"{urllib.parse.unquote(via.username)}:{urllib.parse.unquote(via.password or '')}"
            headers["Proxy-Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
        if tls:
            c.set_tunnel(host, parts.port or 443, headers)
        else:
            target = url
    c.connect()
    c.sock.settimeout(within)
    return c, target


class Catalog:
    """One catalogd. It may be used by many threads, and be sent to other processes.

    `url` and `token` are by default those of CATALOGD_URL, and of CATALOGD_TOKEN or the file that
    CATALOGD_TOKEN_FILE names, which is read anew when the token is refused. `owner` and `try_` say who
    asks, and for which time: by default CATALOGD_OWNER and CATALOGD_TRY, else what Airflow, Dagster,
    Celery, Slurm or Kubernetes has put into the environment, else user@host and 0. `wait` waits for
    other owners, rather than raise `Held`. `patience` is how many seconds a server that is away is
    waited for: CATALOGD_PATIENCE, else ten minutes. `upload` sends outputs through catalogd, although
    their store may be mounted here, or reached from here. `part_size` is that of uploads in parts, in
    bytes. `sigterm` has SIGTERM give up what is under way, where the program has no handler of its own.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, token_file: str | os.PathLike[str] | None = None,
        owner: str | None = None, try_: int | None = None, wait: bool = False, patience: float | None = None,
        upload: bool = False, part_size: int | None = None, sigterm: bool = True,
    ) -> None:
        env = os.environ
        self.url = (url or env.get("CATALOGD_URL") or "http://127.0.0.1:8080").rstrip("/")
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self.url!r} is no URL of a catalogd: set CATALOGD_URL, or url, to http://HOST:PORT")
        if parts.path.endswith("/v1"):
            raise ValueError(f"{self.url!r} ends in /v1, which is added to it: leave that out of CATALOGD_URL")
        self._token_file = None
        if token is None and token_file is None:
            token = env.get("CATALOGD_TOKEN") or None
            token_file = env.get("CATALOGD_TOKEN_FILE") or None
        if not token and token_file is not None:
            self._token_file = os.fspath(token_file)
            token = self._read_token()
        self._token = token or ""
        self._owner = owner if owner is not None else env.get("CATALOGD_OWNER") or None
        number = env.get("CATALOGD_TRY")
        self._try = try_ if try_ is not None else int(number) if number else None
        self._wait = wait
        self.patience = patience if patience is not None else _duration(env.get("CATALOGD_PATIENCE") or "10m")
        self._upload = upload
        if part_size is not None and not 5 << 20 <= part_size <= 5 << 30:
            raise ValueError("part_size is from 5 MiB (5 << 20) to 5 GiB")
        self._part_size = part_size
        self._sigterm = sigterm
        self._locations: dict[str, str] = {}
        if sigterm:
            _heed_sigterm()

    def __repr__(self) -> str:
        return f"Catalog({self.url!r})"

    def unit(self, collection: str, tile_id: str, identity: Identity | None = None, /, **members: Any) -> Unit:
        """A unit of work, for a `with`: its place, and its identity, which is all that decides its bytes.

        Every keyword is a member of the identity, as are those of the mapping, or JSON text, that may
        come third. `version` is always one of them: bump it when the code changes. `Unit.options` has
        what else can be said. Raises `Invalid`, before anything is begun.
        """
        return Unit(self, collection, tile_id, _merge(identity, members))

    def key(self, collection: str, tile_id: str, identity: Identity | None = None, /, **members: Any) -> str:
        """The key of a unit, said as for `unit`; asks no server."""
        return unit_key(collection, tile_id, _merge(identity, members))

    def collection(self, id: str, /, **policy: Any) -> dict[str, Any]:
        """A collection, made if there is none, which takes a token of the role admin.

        `policy` has the members of the contract's NewCollection: title, drivers, store, … One that
        exists stays as it is, and is given.
        """
        path = "/v1/collections/" + urllib.parse.quote(id, safe="")
        for make in (True, False):
            try:
                return _object(self._call("GET", path))
            except Refused as e:
                if e.code != "unknown_collection" or not make:
                    raise
            try:
                return _object(self._call("POST", "/v1/collections", {"id": id, **policy}))
            except Refused as e:
                if e.code != "collection_exists":
                    raise
        raise AssertionError("not reached")

    def open_batch(self, name: str, collection: str) -> Batch:
        """A batch of a collection's units, opened if there is none of this name; one that exists goes on."""
        opened = _object(self._call("POST", "/v1/batches", {"name": name, "collection": collection}))
        return Batch(self, str(opened["name"]))

    def batch(self, name: str) -> Batch:
        """A batch that is there; asks no server yet."""
        return Batch(self, name)

    def gate(self, batch: str | Batch, **limits: Any) -> Gate:
        """Judges a batch. See `Batch.gate`."""
        return (batch if isinstance(batch, Batch) else self.batch(batch)).gate(**limits)

    def check(self, units: Iterable[UnitRef], verify: bool = False) -> Iterator[Checked]:
        """What is done, and what is due, of as many units as you like, in their order; changes nothing.

        `verify` looks at the objects too. Units are sent, and answers read, as they come: whoever takes
        a minute over one is cut off, so first collect what is due, and then work on it. A bad unit has an
        `error` in its place. An answer that was cut off raises `Unavailable` at its end.
        """
        return _Check(self, units, verify).run()

    # The rest is this module's own.

    def _read_token(self) -> str:
        if self._token_file is None:
            return ""
        with open(self._token_file, encoding="utf-8") as f:
            return f.read(64 << 10).strip()

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": "catalogd-python/" + __version__}
        if self._token:
            headers["Authorization"] = "Bearer " + self._token
        return headers

    def _call(
        self, method: str, path: str, body: Any = None, *, within: float | None = None, patience: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Asks until there is an answer, or patience is at its end. Raises Refused, Unavailable."""
        patience = self.patience if patience is None else patience
        each = within or min(_ANSWER_WITHIN, max(patience, _LEAST_WITHIN))
        content = None if body is None else json.dumps(body).encode()
        sent = {**({} if content is None else {"Content-Type": "application/json"}), **(headers or {})}

        def once() -> Any:
            return self._once(method, path, content, sent, each)

        return self._patiently(once, patience=patience)

    def _once(self, method: str, path: str, body: bytes | _LocalFile | None, headers: dict[str, str], within: float) -> Any:
        try:
            c, target = _connect(self.url + path, within, within)
        except (OSError, http.client.HTTPException) as e:
            raise _NoAnswer(_say(e)) from e
        with contextlib.closing(c):
            length = body.size if isinstance(body, _LocalFile) else len(body or b"")
            status, content, answered = _exchange(c, method, target, {**self._headers(), **headers}, body, length)
        if status == 401:
            token = ""
            with contextlib.suppress(OSError):
                token = self._read_token()
            if token and token != self._token:
                self._token = token
                raise _Renewed
        if status >= 300:
            raise _refusal(status, content, answered.get("Retry-After"))
        if not content:
            return None
        try:
            return json.loads(content)
        except ValueError as e:
            raise CatalogError(f"{self.url} does not answer as catalogd does: is CATALOGD_URL right? {e}") from e

    def _patiently(
        self, once: Callable[[], _T], *, patience: float, url: str = "", store: bool = False, longest: float = _LAST_PAUSE,
        stop: threading.Event | None = None,
    ) -> _T:
        began: float | None = None  # the first failure: sending much may take longer than patience
        failures, pause, told = 0, _FIRST_PAUSE, False
        url = url or self.url
        while True:
            error: Exception
            retry_after = 0.0
            try:
                return once()
            except _Renewed:
                continue
            except Refused as e:
                if not _passes(e):
                    raise
                error, retry_after = e, e._retry_after
                failures = failures + 1 if e.status == 500 else 0
                if failures > _MAX_FAILURES:
                    raise
            except _NoAnswer as e:
                error, failures = e, 0
            now = time.monotonic()
            began = now if began is None else began
            wait = max(pause / 2 + random.random() * pause, min(retry_after, _MAX_RETRY_AFTER))
            if now - began + wait > patience:
                raise Unavailable(url, str(error), now - began if patience else 0, store) from error
            if not told and now - began > 0.5:
                _log.warning("waiting for %s at %s: %s", "the store" if store else "catalogd", url, error)
                told = True
            if stop is None:
                time.sleep(wait)
            elif stop.wait(wait):
                raise _Stopped
            pause = min(2 * pause, longest)

    def _origin(self) -> tuple[str, int]:
        owner, number = _find_origin(os.environ)
        if self._owner:
            owner, number = self._owner, 0
        return owner, number if self._try is None else self._try

    def _location(self, store_id: str) -> str:
        """What stands before an object key to make what GDAL opens here; "" where nothing does."""
        if store_id not in self._locations:
            answer = _object(self._call("GET", "/v1/stores"))
            self._locations.update({s["store_id"]: s["location"] for s in answer["stores"]})
        location = self._locations.get(store_id, "")
        if location.startswith("/vsi") or _sentinel(location) == store_id:
            return location
        return ""


def _merge(identity: Identity | None, members: dict[str, Any]) -> Identity:
    if identity is None:
        return members
    if not members:
        return identity
    if not isinstance(identity, Mapping):
        raise TypeError("give the identity as JSON text or as keywords, not both")
    twice = sorted(set(identity) & set(members))
    if twice:
        raise TypeError(f"{twice[0]!r} is both in the identity and a keyword")
    return {**identity, **members}


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise CatalogError("the server does not answer as catalogd does: is CATALOGD_URL right?")
    return answer


def _duration(text: str) -> float:
    """Seconds of 90, 90s, 10m or 1h30m."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(f"{text!r} is no duration such as 10m or 90s: look at CATALOGD_PATIENCE")
    return sum(float(n) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[u] for n, u in parts)


def _say(e: BaseException) -> str:
    if isinstance(e, TimeoutError):
        return "it took too long"
    if isinstance(e, http.client.RemoteDisconnected):
        return "the connection was closed without an answer"
    return str(e) or type(e).__name__


def _exchange(
    c: http.client.HTTPConnection, method: str, target: str, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None, length: int,
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Sends one request, and reads its answer whole. Raises _NoAnswer; what body raises passes."""
    try:
        c.putrequest(method, target)
        for name, value in headers.items():
            if name.lower() != "content-length":  # which may be among what is signed
                c.putheader(name, value)
        if body is not None or method in ("PUT", "POST"):
            c.putheader("Content-Length", str(length))
        c.endheaders()
    except (OSError, http.client.HTTPException) as e:
        raise _NoAnswer(_say(e)) from e
    broken: Exception | None = None
    if "Expect" in headers and not _continues(c.sock):
        body = None  # refused before the bytes were taken
    for block in (body,) if isinstance(body, bytes) else body or ():
        try:
            c.sock.sendall(block)
        except OSError as e:
            broken = e  # who refuses says so, and closes without reading on: that is to be heard
            break
    try:
        response = c.getresponse()
        return response.status, response.read(), response.headers
    except (OSError, http.client.HTTPException) as e:
        raise _NoAnswer(_say(broken or e)) from e


def _continues(sock: socket.socket) -> bool:
    """Waits a second for the answer to Expect: 100-continue, and tells whether to send the body."""
    try:
        if not select.select([sock], [], [], 1)[0]:
            return True
        return isinstance(sock, ssl.SSLSocket) or sock.recv(12, socket.MSG_PEEK)[9:] in (b"100", b"")
    except (OSError, ValueError):  # sending will tell
        return True


def _refusal(status: int, content: bytes, retry_after: str | None = None) -> Refused:
    p: Any = None
    with contextlib.suppress(ValueError):
        p = json.loads(content)
    if isinstance(p, dict) and p.get("code"):
        refused = Refused(status, str(p["code"]), str(p.get("detail", "")), str(p.get("field", "")))
    else:
        refused = Refused(status, "", f"HTTP status {status}, and no problem of catalogd's: is there a proxy, and is CATALOGD_URL right?")
    if retry_after and retry_after.isdigit():
        refused._retry_after = float(retry_after)
    return refused


def _passes(e: Refused) -> bool:
    """Whether a problem says nothing of the request: it can be sent again."""
    if e.status == 500:
        return e.code in ("internal", "")  # others ended an attempt, and say what must change
    return e.status in (429, 502, 503, 504)


# Units


class Unit:
    """One unit of work, and this task's attempt at it. See `Catalog.unit`.

    Entered, it is either `done`, or has a `path` to write to and `tags` to write into the file; left,
    the file is handed over. An exception in the body is reported as a failure, `failed` tells what becomes of
    the unit, and the exception passes on:

    - `ValueError`, `KeyError`, `PoisonTile`: deterministic, not to be tried again
    - what has an HTTP status of 4xx or 5xx (urllib's, requests', httpx', botocore's), and exceptions not named
      here: as catalogd classifies that, or the exception's name, for which the collection can have rules
    - `OSError`, which `TimeoutError` and `ConnectionError` are: transient
    - `KeyboardInterrupt`, `SystemExit`, cancellation, no room left, and `Held`, `Unavailable` or `Lost` of
      another unit say nothing of this one: the attempt is given up, which counts for nothing

    Entering raises `Held`, `Quarantined`, `Refused` and `Unavailable`; leaving `NoOutput`, `Refused` (for
    what is wrong with the file, status 422, the failure has been reported), `Lost` and `Unavailable`.
    """

    def __init__(self, catalog: Catalog, collection: str, tile_id: str, identity: Identity) -> None:
        canonical = canonical_identity(identity)
        self.collection, self.tile_id = collection, tile_id
        #: The unit's key.
        self.key = _key(collection, tile_id, canonical)
        #: The identity, as its canonical form reads.
        self.identity: dict[str, Any] = json.loads(canonical)
        self.version: str = self.identity["version"]
        #: What should be written into the output as tags: `dst.update_tags(**u.tags)`.
        self.tags: dict[str, str] = {}
        #: The row of the unit: what the contract calls a Tile. None while there is none.
        self.row: dict[str, Any] | None = None
        #: "" before, or "claimed" (see `Batch.claim`); "open" in the body; then "skip", "done", "overtaken"
        #: (another's output came first; that one counts), "failed", "abandoned", "lost", or "unknown".
        self.state = ""
        #: What became of the unit whose failure was reported: tried again, or quarantined.
        self.failed: Failed | None = None
        self._catalog = catalog
        self._said: dict[str, Any] = {}
        self._owner: str | None = None
        self._try: int | None = None
        self._wait = catalog._wait
        self._question: dict[str, Any] | None = None
        self._attempt: dict[str, Any] | None = None
        self._lost: threading.Event | None = None
        self._path = ""
        self._private: str | None = None
        self._pid = 0

    def options(
        self, *, wait: bool | None = None, media_type: str | None = None, acquired: Acquired | None = None,
        properties: Mapping[str, Any] | None = None, client_key: str | None = None, owner: str | None = None, try_: int | None = None,
        batch: str | Batch | None = None,
    ) -> Unit:
        """What else is said of this unit; gives it back. `acquired` and `properties` may be said in the body, too.

        `media_type` of the output, by default the collection's. `acquired`, an instant or a pair of them,
        by default what the file's tags say. `properties` go into the row. `client_key` is the pipeline's
        own key. `owner` and `try_` are as for `Catalog`: a Celery task says
        `owner=f"celery:{self.request.id}", try_=self.request.retries`. `batch` is what the unit is done for,
        which must expect it; it is no part of the identity.
        """
        if wait is not None:
            self._wait = wait
        if acquired is not None:
            start, end = acquired if isinstance(acquired, tuple) else (acquired, None)
            self._said["acquired"] = {"start": _instant(start)} | ({} if end is None else {"end": _instant(end)})
        for name, value in (("media_type", media_type), ("properties", properties), ("client_key", client_key)):
            if value is not None:
                self._said[name] = dict(value) if isinstance(value, Mapping) else value
        if batch is not None:
            self._said["batch"] = batch.name if isinstance(batch, Batch) else batch
        self._owner = owner if owner is not None else self._owner
        self._try = try_ if try_ is not None else self._try
        return self

    def __repr__(self) -> str:
        return f"<Unit {self.collection}/{self.tile_id} {self.key}{' ' + self.state if self.state else ''}>"

    @property
    def done(self) -> bool:
        """Whether there is an output: nothing is to be written."""
        return self.row is not None

    @property
    def path(self) -> str:
        """Where to write: the attempt's staging name where the store is mounted here, else a private file."""
        if not self._path:
            raise CatalogError("there is nothing to write: the unit is done; look at u.done first" if self.done else "enter the unit first: with cat.unit(…) as u")
        return self._path

    @property
    def lost(self) -> bool:
        """Whether the attempt holds its unit no longer, so that going on is in vain."""
        return self._lost is not None and self._lost.is_set()

    @property
    def current(self) -> bool:
        """Whether the unit's place shows its output, rather than another version's."""
        return bool(self._row()["current"])

    @property
    def href(self) -> str:
        """URL of the output at catalogd, for whoever has a token."""
        return urllib.parse.urljoin(self._catalog.url + "/", str(self._row()["href"]))

    @property
    def location(self) -> str:
        """What rasterio opens: a path where the store is mounted here, /vsis3/… for one on S3, else `href`."""
        row = self._row()
        before = self._catalog._location(row["store_id"])
        return before + str(row["object_key"]) if before else self.href

    def _row(self) -> dict[str, Any]:
        if self.row is None:
            raise CatalogError("the unit has no output yet: look at u.done, or leave the with first")
        return self.row

    def give_back(self) -> None:
        """Gives up a claimed unit that is not going to be entered: it is due again at once. Of others it does nothing."""
        _give_back([self])

    def _claimed(self, attempt: dict[str, Any], tags: dict[str, str]) -> Unit:
        """Takes on the attempt that a claim has begun."""
        self.state, self._attempt, self.tags = "claimed", attempt, tags
        self._enlist()
        _keeper(self._catalog).hold(attempt)
        return self

    def _enlist(self) -> None:
        """Has the unit given up when the process is told to end."""
        if self._catalog._sigterm:
            _heed_sigterm()
        self._pid = os.getpid()
        _under_way[id(self)] = self

    def __enter__(self) -> Unit:
        if self.state not in ("", "claimed"):
            raise CatalogError("a unit is entered once: ask for it again with cat.unit(…)")
        self._enlist()
        try:
            if self._attempt is None:
                self._begin()
            if self._attempt is not None:
                self.state, self._lost = "open", _keeper(self._catalog).hold(self._attempt)
                if self._lost.is_set():
                    raise Lost("the lease ran out before the unit was entered: claim fewer at a time")
                self._stage(self._attempt)
        except BaseException as e:
            if self._attempt is not None:
                self._give_up()
            elif not isinstance(e, Exception):
                self._retract()
            self._leave()
            raise
        if self._attempt is None:
            self._leave()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if self._attempt is None:
            return
        try:
            if e is None:
                self._deliver(self._attempt)
            else:
                self._failed(e)
        finally:
            self._leave()

    def _begin(self) -> None:
        """Asks until there is an attempt, or nothing to do."""
        owner, number = self._catalog._origin()
        if self._owner is not None:
            owner, number = self._owner, 0
        number = number if self._try is None else self._try
        told, pause = False, _FIRST_PAUSE
        while True:
            # A new id for each question: the replays are _call's.
            self._question = {
                "collection": self.collection, "tile_id": self.tile_id, "identity": self.identity,
                "owner": owner, "try": number, "request_id": uuid.uuid4().hex, **self._said,
            }
            try:
                d = _object(self._catalog._call("POST", "/v1/attempts", self._question))
            except Refused as e:
                if e.code == "attempt_ended":
                    continue  # begun, then lost while no answer came
                raise
            self._question = None
            verdict = d.get("verdict")
            if verdict == "skip":
                self.state, self.row = "skip", _object(d.get("tile"))
                if "current" in d:
                    self.row = {**self.row, "current": d["current"]}
                return
            if verdict == "run":
                self.state, self._attempt, self.tags = "open", _object(d.get("attempt")), d.get("tags") or {}
                return
            reason = str(d.get("reason", ""))
            if verdict == "quarantined":
                raise Quarantined(reason, str(d.get("class", "")), str(d.get("message", "")))
            if verdict != "wait":
                raise CatalogError(f"the server gave the verdict {verdict!r}, which this version does not know")
            wait = float(d.get("retry_after", 1))
            if not self._wait:
                advice = ""
                if f"held by owner {json.dumps(owner, ensure_ascii=False)}" in reason:
                    advice = (f"if that is an earlier try of this one, which has ended, try_={number + 1} takes over at once; "
                              f"else try again in {wait:.0f} s, or wait with wait=True")
                raise Held(reason, wait, advice)
            if not told:
                _log.warning("%s/%s: waiting: %s", self.collection, self.tile_id, reason)
                told = True
            time.sleep(min(max(wait, _FIRST_PAUSE), pause))  # sooner than the lease ends: the other may be done before
            pause = min(2 * pause, _LAST_WAIT)

    def _retract(self) -> None:
        """Gives up the attempt that a begin may have made whose answer was not waited for."""
        if self._question is None:
            return
        with contextlib.suppress(CatalogError):
            d = self._catalog._call("POST", "/v1/attempts", self._question, patience=0)
            if isinstance(d, dict) and d.get("attempt"):
                self._end(d["attempt"]["attempt_id"], "abandon", None, patience=0)

    def _stage(self, attempt: dict[str, Any]) -> None:
        if not self._catalog._upload and _shared(attempt):
            self._path = attempt["staging_path"]
            return
        self._private = tempfile.mkdtemp(prefix="catalogd-")
        self._path = os.path.join(self._private, "out" + os.path.splitext(attempt["staging_key"])[1])

    def _sound(self) -> bool:
        """Whether the place to write to is still there, and has room: else a failure says nothing of the unit."""
        assert self._attempt is not None
        if self._private is not None:
            return True
        if not _shared(self._attempt):
            return False
        room = os.statvfs(os.path.dirname(self._path))
        return room.f_bavail * room.f_frsize > 1 << 20

    def _failed(self, e: BaseException) -> None:
        """Tells catalogd how the body ended. The body's exception passes on, whatever becomes of that."""
        if self.lost:
            self.state = "lost"
            return
        said_nothing = not isinstance(e, Exception) or isinstance(e, (Held, Unavailable, Lost))
        no_room = isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT)
        if said_nothing or no_room or not self._sound():
            self._give_up()
            return
        message = "".join(traceback.format_exception(type(e), e, e.__traceback__))
        try:
            self._fail(_classify(e), message)
        except CatalogError as unreported:
            _log.warning("%s/%s: the failure could not be reported: %s", self.collection, self.tile_id, unreported)
        self._discard()

    def _fail(self, kind: dict[str, Any], message: str) -> None:
        assert self._attempt is not None
        answer = self._end(self._attempt["attempt_id"], "fail", {**kind, "message": _last_lines(message)})
        self.state = "failed"
        if answer is not None:
            self.failed = Failed(
                answer["next"], answer.get("retry_after"), answer.get("quarantined_as"), answer["class"], answer["reason"], answer["tries"], answer["spent"])

    def _end(self, attempt_id: str, how: str, body: dict[str, Any] | None, patience: float | None = None) -> dict[str, Any] | None:
        try:
            return _object(self._catalog._call("POST", f"/v1/attempts/{attempt_id}/{how}", body, patience=patience))
        except Refused as e:
            if e.code not in ("attempt_lost", "attempt_ended"):
                raise
            return None

    def _give_up(self, patience: float = 10) -> None:
        """Does not wait long for a server that is away: the lease ends by itself."""
        assert self._attempt is not None
        self._discard()
        self.state = "unknown"
        try:
            self._end(self._attempt["attempt_id"], "abandon", None, patience=min(patience, self._catalog.patience))
            self.state = "abandoned"
        except CatalogError as e:
            _log.warning("%s/%s: the attempt could not be given up, and ends with its lease: %s", self.collection, self.tile_id, e)

    def _deliver(self, attempt: dict[str, Any]) -> None:
        wrong = ""
        try:
            mode = os.lstat(self._path).st_mode
            if not stat.S_ISREG(mode):
                wrong = "no_file"
        except FileNotFoundError:
            wrong = "no_output"
        if wrong:
            if not self._sound():
                self._give_up()
                raise Unavailable(os.path.dirname(self._path), "the store is away, or full", store=True)
            message = f"the body ended well, and left {'nothing' if wrong == 'no_output' else 'no regular file'} at {self._path}: write to u.path, unless u.done"
            self._fail({"class": "deterministic", "reason": wrong}, message)
            self._discard()
            raise NoOutput(message)
        self.state = "unknown"
        try:
            self._hand_over(attempt)
        except _Stopped:
            self.state = "lost"
            raise Lost("another attempt took the unit over, or the lease ran out") from None
        except Refused as e:
            if e.code in ("attempt_lost", "attempt_ended"):
                self.state = "lost"
                raise Lost(str(e)) from e
            if e.status == 422:
                self._fail({"class": "deterministic", "reason": e.code}, e.detail)  # the file is refused, and would be again
                self._discard()
            elif e.code != "attempt_promoting":
                self._give_up()
            raise
        except Unavailable as e:
            if e.store:
                self._give_up()
            raise
        except BaseException:
            self._give_up()
            raise

    def _hand_over(self, attempt: dict[str, Any]) -> None:
        """Gets the output to where it is staged, and completes. Bytes that came as others are sent again."""
        assert self._lost is not None
        for sent in range(1, _MAX_SENT + 1):
            if self._lost.is_set():
                raise _Stopped
            handed = _hand(self._catalog, attempt, self._path, self._private is not None, self._lost, sent > 1)
            body = {k: v for k, v in self._said.items() if k in ("acquired", "properties")} | handed.body
            try:
                outcome = _object(self._catalog._call("POST", f"/v1/attempts/{attempt['attempt_id']}/complete", body, within=_STEP_WITHIN))
            except Refused as e:
                if handed.direct and e.code in ("size_mismatch", "checksum_mismatch", "staged_missing"):
                    continue
                raise
            self.state, self.row = str(outcome["state"]), _object(outcome["tile"])
            return
        raise _altered(self._path)

    def _discard(self) -> None:
        """Removes what will not be handed over, while the attempt is this task's."""
        if self._path and self._private is None:
            with contextlib.suppress(OSError):
                os.remove(self._path)

    def _leave(self) -> None:
        if self._attempt is not None:
            _keeper(self._catalog).release(self._attempt)
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
        _under_way.pop(id(self), None)


#: When a scene was taken: RFC 3339 text, or a datetime with a time zone; or a pair of them.
Acquired = Union[str, datetime.datetime, tuple[Union[str, datetime.datetime], Union[str, datetime.datetime]]]


def _instant(t: str | datetime.datetime) -> str:
    if isinstance(t, str):
        return t
    if t.tzinfo is None:
        raise ValueError(f"{t!r} has no time zone: say datetime.timezone.utc, or which")
    return t.isoformat()


@dataclasses.dataclass(frozen=True)
class Failed:
    """What became of a unit whose failure was reported."""

    next: Literal["retry", "quarantined"]
    #: Seconds until it is due again.
    retry_after: float | None
    #: "deterministic", "exhausted" (it failed once more than it may be tried again) or "expired".
    quarantined_as: str | None
    #: "transient" or "deterministic".
    class_: str
    reason: str
    #: Tries that are spent; whether this failure spent one.
    tries: int
    spent: bool


def _classify(e: BaseException) -> dict[str, Any]:
    """What a report says of an exception: its class where that is certain, else what catalogd classifies it by."""
    if isinstance(e, PoisonTile):
        return {"class": "deterministic", "reason": e.reason[:256] or "poison_tile"}
    kind = type(e)
    name = (kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")[:256]
    status = _http_status(e)
    if status is not None:
        return {"http_status": status, "exception": name}
    if isinstance(e, (ValueError, KeyError)):
        return {"class": "deterministic", "reason": name}
    if isinstance(e, (OSError, TimeoutError, ConnectionError, concurrent.futures.TimeoutError)):
        return {"class": "transient", "reason": name}
    return {"exception": name}


def _http_status(e: BaseException) -> int | None:
    """Of the answer that made it fail."""
    response = getattr(e, "response", None)
    status = getattr(response, "status_code", None)  # of requests and httpx
    if isinstance(response, Mapping):  # botocore's
        status = (response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
    if isinstance(e, urllib.error.HTTPError):
        status = e.code
    return status if isinstance(status, int) and 400 <= status <= 599 else None


def _last_lines(said: str) -> str:
    """The last twenty, within 8 KiB, as text that can be stored."""
    said = said.strip().replace("\0", "?").encode("utf-8", "replace")[-(8 << 10):].decode("utf-8", "ignore")
    return "\n".join(said.split("\n")[-20:])


@dataclasses.dataclass
class _Lease:
    every: float
    next: float
    lost: threading.Event


class _Keeper:
    """Renews the leases of this process's attempts: one thread, and one request for all of them, thrice in
    their length. A heartbeat that fails is made up for by the next."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._leases: dict[str, _Lease] = {}
        self._changed = threading.Condition()  # its lock can be taken twice: by a signal's handler
        self._wakes = 0.0
        self._thread: threading.Thread | None = None

    def hold(self, attempt: dict[str, Any]) -> threading.Event:
        """Keeps an attempt until it is released. Gives what is set when it is lost."""
        left = 60.0
        with contextlib.suppress(ValueError):
            left = _parse_time(attempt["lease_until"]) - time.time()
        every = max(min(left / 3, 20.0), 1.0)
        with self._changed:
            lease = self._leases.setdefault(attempt["attempt_id"], _Lease(every, time.monotonic() + every, threading.Event()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="catalogd-heartbeat", daemon=True)
                self._thread.start()
            elif lease.next < self._wakes:
                self._changed.notify()
        return lease.lost

    def release(self, attempt: dict[str, Any]) -> None:
        """Does not wait: a heartbeat under way does no harm."""
        with self._changed:
            self._leases.pop(attempt["attempt_id"], None)

    def _run(self) -> None:
        told = False
        while True:
            with self._changed:
                now = time.monotonic()
                held = {id: lease for id, lease in self._leases.items() if not lease.lost.is_set()}
                self._wakes = min((lease.next for lease in held.values()), default=math.inf)
                if self._wakes > now:
                    self._changed.wait(None if self._wakes == math.inf else self._wakes - now)
                    continue
                for lease in held.values():
                    lease.next = now + lease.every
            try:
                self._renew(held)
            except Refused as e:
                if e.status in (401, 403) and not told:
                    _log.warning("the leases cannot be renewed: %s", e)
                    told = True
            except (CatalogError, KeyError, TypeError):
                pass

    def _renew(self, held: dict[str, _Lease]) -> None:
        ids = list(held)
        for i in range(0, len(ids), _MAX_HEARTBEATS):
            answer = self._catalog._call("POST", "/v1/heartbeats", {"attempts": ids[i : i + _MAX_HEARTBEATS]}, patience=0)
            for lease in answer["leases"]:
                if lease["state"] not in ("open", "promoting"):
                    held[lease["attempt_id"]].lost.set()


_MAX_HEARTBEATS = 10_000
_keepers: dict[tuple[int, str, str], _Keeper] = {}


def _keeper(catalog: Catalog) -> _Keeper:
    """The process's own for a catalogd: threads do not outlive a fork."""
    key = (os.getpid(), catalog.url, catalog._token_file or catalog._token)
    return _keepers.get(key) or _keepers.setdefault(key, _Keeper(catalog))


def _parse_time(text: str) -> float:
    text = re.sub(r"\.([0-9]{1,6})[0-9]*", lambda m: "." + m[1].ljust(6, "0"), text).replace("Z", "+00:00")
    return datetime.datetime.fromisoformat(text).timestamp()


# SIGTERM

_under_way: dict[int, Unit] = {}


def _heed_sigterm() -> None:
    """Has SIGTERM give up what is under way, where nobody else heeds it. Only the main thread can."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, _frame: Optional[FrameType]) -> None:
    """Gives up every attempt of this process, of all its threads, and ends as SIGTERM would have ended it."""
    until = time.monotonic() + 10
    for unit in sorted(_under_way.values(), key=lambda u: u.state == "claimed"):
        if unit._pid != os.getpid():  # its parent's
            continue
        if time.monotonic() < until:
            with contextlib.suppress(Exception):
                if unit._attempt is not None:
                    unit._give_up(patience=0)
                else:
                    unit._retract()
        with contextlib.suppress(Exception):
            unit._leave()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@atexit.register
def _on_exit() -> None:
    _give_back([unit for unit in _under_way.values() if unit._pid == os.getpid()])


def _give_back(units: Iterable[Unit]) -> None:
    """Gives up what was claimed and never entered. A server that is away is waited for once, and not for each."""
    away = False
    for unit in units:
        if unit.state != "claimed":
            continue
        if away:
            unit.state = "unknown"
        else:
            unit._give_up()
            away = unit.state == "unknown"
        unit._leave()


# Handing over

_MAX_SENT = 3  # how often the same bytes are sent that arrive as others
_PARALLEL = 4  # requests to a store at once
_UNREACHABLE_AFTER, _STALLED_AFTER, _STORE_CONNECT = 15.0, 120.0, 5.0


class _Stopped(Exception):
    """The attempt was lost, or another part failed: nothing more is to be sent."""


class _NotFromHere(Exception):
    """The store takes nothing from here; catalogd may pass the output on."""


@dataclasses.dataclass(frozen=True)
class _Handed:
    body: dict[str, Any]  # for complete
    direct: bool = False  # nobody has compared the bytes yet


def _sentinel(root: str) -> str | None:
    """The id of the store that is mounted at root, if one is."""
    if not root:
        return None
    try:
        with open(os.path.join(root, ".catalogd", "store.json"), encoding="utf-8") as f:
            found = json.load(f)
    except (OSError, ValueError):
        return None
    return found.get("id") if isinstance(found, dict) else None


def _shared(attempt: dict[str, Any]) -> bool:
    """Whether the attempt's store is mounted here, at the same path as at the server."""
    path, key = attempt.get("staging_path") or "", attempt.get("staging_key") or ""
    if not key or not path.endswith("/" + key):
        return False
    return _sentinel(path[: -len(key) - 1]) == attempt["store_id"] and os.access(os.path.dirname(path), os.W_OK | os.X_OK)


def _hand(catalog: Catalog, attempt: dict[str, Any], path: str, send: bool, lost: threading.Event, again: bool) -> _Handed:
    """Gets an output to the server durably: sends it, or syncs it."""
    if not send:
        with open(path, "rb") as f:
            os.fsync(f.fileno())  # NFS sends what it holds
            return _Handed({"size_bytes": os.fstat(f.fileno()).st_size})
    # An empty one no request takes; complete says what it is.
    if attempt.get("staging_uri") and not catalog._upload and os.path.getsize(path) > 0:
        try:
            return _Upload(catalog, attempt, path, lost, again).run()
        except _NotFromHere as e:
            _log.warning("%s; sending through catalogd, as upload=True does at once", e)
    for _ in range(_MAX_SENT):
        def once() -> tuple[Any, _LocalFile]:
            with contextlib.closing(_LocalFile(path, lost)) as local:
                headers = {"Content-Type": "application/octet-stream"}
                return catalog._once("PUT", f"/v1/attempts/{attempt['attempt_id']}/output", local, headers, _STALLED_AFTER), local

        staged, read = catalog._patiently(once, patience=catalog.patience, stop=lost)
        if staged["checksum"] == read.checksum():
            return _Handed({"size_bytes": read.size, "checksum": read.checksum()})
    raise _altered(path)


def _altered(path: str) -> CatalogError:
    return CatalogError(f"{path} was sent {_MAX_SENT} times and never came as it is: what lies between changes it")


class _LocalFile:
    """A file that is read once, to its end as it was when it was opened."""

    def __init__(self, path: str, stop: threading.Event) -> None:
        self.path, self._stop, self._sum = path, stop, hashlib.sha256()
        self._f = open(path, "rb")
        self._info = os.fstat(self._f.fileno())
        self.size = self._info.st_size

    def __iter__(self) -> Iterator[bytes]:
        for block in self.blocks(0, self.size):
            self._sum.update(block)
            yield block

    def blocks(self, offset: int, size: int) -> Iterator[bytes]:
        """Those bytes, by a handle of their own. Raises _Stopped, and CatalogError for a file that changes."""
        with open(self.path, "rb") as f:
            f.seek(offset)
            while size > 0:
                if self._stop.is_set():
                    raise _Stopped
                block = f.read(min(_BLOCK, size))
                if not block:
                    raise CatalogError(f"{self.path} became shorter while it was read: leave the with when it is finished")
                size -= len(block)
                if not size:
                    self.unchanged()
                yield block

    def unchanged(self) -> None:
        """Refuses a file that is another than it was: who writes it has not finished."""
        now = os.stat(self.path)
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (self.size, self._info.st_mtime_ns, self._info.st_ino):
            raise CatalogError(f"{self.path} changed while it was read: close it before the with ends")

    def checksum(self) -> str:
        """That of what was read, as the contract writes it."""
        return "sha256:" + self._sum.hexdigest()

    def close(self) -> None:
        self._f.close()


class _StoreAnswer(Exception):
    """An answer of a store that says that it did not take the bytes."""

    def __init__(self, status: int, content: bytes) -> None:
        self.status = status
        code = re.search(rb"<Error\b.*?<Code>([^<]*)</Code>", content, re.DOTALL)
        message = re.search(rb"<Message>([^<]*)</Message>", content)
        self.code = code[1].decode("utf-8", "replace") if code else ""
        if self.foreign:
            super().__init__(f"HTTP status {status}, and no answer of S3's: is there a proxy?")
        else:
            super().__init__(f"{self.code} (HTTP status {status}): {message[1].decode('utf-8', 'replace') if message else ''}")

    @property
    def foreign(self) -> bool:
        """Whether it is none of an S3 server's: a proxy's, say."""
        return not self.code

    @property
    def expired(self) -> bool:
        return self.status == 403 or self.code == "ExpiredToken"

    @property
    def passes(self) -> bool:
        """Whether the same may be taken later."""
        if self.status == 501:
            return False
        return self.status in (408, 409, 429) or self.status >= 500 or self.code in ("RequestTimeout", "IncompleteBody")


class _Upload:
    """Sends an output straight to its store. Neither token nor anything else but the signed requests goes there."""

    def __init__(self, catalog: Catalog, attempt: dict[str, Any], path: str, lost: threading.Event, replace: bool) -> None:
        self.catalog, self.path, self.lost, self.replace = catalog, f"/v1/attempts/{attempt['attempt_id']}/upload", lost, replace
        self.file = _LocalFile(path, lost)
        self.lock = threading.Lock()  # of the plan
        self.began = time.monotonic()
        self.met = False  # the store was reached
        self.broken = threading.Event()  # a part failed for good

    def run(self) -> _Handed:
        with contextlib.closing(self.file):
            for _ in self.file:
                pass  # for its sum
            self.plan = self.start(None)
            count = len(self.plan["requests"])
            etags: list[str] = []
            if count == 1:
                etags.append(self.send(0))
            else:
                with concurrent.futures.ThreadPoolExecutor(_PARALLEL, "catalogd-upload") as pool:
                    parts = [pool.submit(self.send, i) for i in range(count)]
                    try:
                        for part in concurrent.futures.as_completed(parts):
                            part.result()
                    except BaseException:
                        self.broken.set()
                        pool.shutdown(wait=False, cancel_futures=True)
                        raise
                    etags = [part.result() for part in parts]
            body: dict[str, Any] = {"size_bytes": self.file.size, "checksum": self.file.checksum()}
            if self.plan.get("upload_id"):
                body["upload"] = {"upload_id": self.plan["upload_id"], "etags": etags}
            return _Handed(body, direct=True)

    def start(self, upload_id: str | None) -> dict[str, Any]:
        """Asks for the requests: new ones, or those of an upload in parts anew."""
        body: dict[str, Any] = {"size_bytes": self.file.size, "checksum": self.file.checksum()}
        if self.catalog._part_size:
            body["part_size"] = self.catalog._part_size
        if upload_id:
            body["upload_id"] = upload_id
        if self.replace:
            body["replace"] = True
        plan = _object(self.catalog._call("POST", self.path, body))
        end = 0
        for r in plan["requests"]:
            if r["offset"] != end:
                raise CatalogError(f"the server's requests leave out what is at {end}")
            end += r["size_bytes"]
        if end != self.file.size:
            raise CatalogError(f"the server's requests take {end} of {self.file.size} bytes")
        return plan

    def renew(self, expired: dict[str, Any]) -> None:
        """Asks for the requests anew, once for all that found the same ones expired."""
        with self.lock:
            if self.plan is not expired:
                return
            plan = self.start(expired.get("upload_id"))
            if len(plan["requests"]) != len(expired["requests"]):
                raise CatalogError(f"the server cut the upload in {len(expired['requests'])} parts, and now in {len(plan['requests'])}")
            self.plan = plan

    def send(self, i: int) -> str:
        """Sends one request until the store has its bytes; gives its answer's ETag."""
        at = "{0.scheme}://{0.netloc}".format(urllib.parse.urlsplit(self.plan["requests"][i]["url"]))
        refused = altered = 0

        def once() -> str:
            nonlocal refused, altered
            if self.broken.is_set():
                raise _Stopped
            with self.lock:
                plan = self.plan
            error: Exception
            try:
                return self.put(plan["requests"][i])
            except (_StoreAnswer, _NoAnswer) as e:
                error = e
            self.file.unchanged()
            untrusted = isinstance(error.__cause__, ssl.SSLCertVerificationError)
            if not self.met and (untrusted or time.monotonic() - self.began > _UNREACHABLE_AFTER):
                raise _NotFromHere(f"the store takes nothing from here: {at}: {error}") from error
            if not isinstance(error, _StoreAnswer) or not self.met and error.foreign:
                if isinstance(error.__cause__, (BrokenPipeError, ConnectionResetError)) and _past(plan.get("expires_at")):
                    self.renew(plan)  # who refuses may close before that is heard
                raise _NoAnswer(str(error)) from error
            if error.status == 412 and not plan.get("upload_id"):
                return ""  # it is there since a try whose answer was lost; complete compares
            if error.expired and refused < 2:
                refused += 1
                self.renew(plan)
                raise _Renewed
            if error.code == "BadDigest" and altered < _MAX_SENT - 1:
                altered += 1
                raise _NoAnswer(str(error)) from error
            if error.passes:
                raise _NoAnswer(str(error)) from error
            raise _NotFromHere(f"the store takes nothing from here: {at}: {error}") from error

        try:
            return self.catalog._patiently(
                once, patience=self.catalog.patience, url=at, store=True, longest=_LAST_STORE_PAUSE, stop=self.lost)
        except Unavailable as e:
            if e.store and not self.met:  # patience was shorter
                raise _NotFromHere(f"the store takes nothing from here: {e}") from e
            raise

    def put(self, request: dict[str, Any]) -> str:
        """Sends a request once. It follows no redirect: what is signed is signed for one host."""
        try:
            c, target = _connect(request["url"], _STORE_CONNECT, _STALLED_AFTER)
        except (OSError, http.client.HTTPException) as e:
            raise _NoAnswer(_say(e)) from e
        with contextlib.closing(c):
            headers = {"User-Agent": "catalogd-python/" + __version__, "Expect": "100-continue", **request["headers"]}
            size = request["size_bytes"]
            try:
                status, content, answered = _exchange(c, request["method"], target, headers, self.blocks(request), size)
            except _NoAnswer:
                self.met = True
                raise
        etag: str | None = answered.get("ETag")
        if status // 100 == 2 and etag:
            self.met = True
            return etag
        answer = _StoreAnswer(status, content)
        self.met = self.met or not answer.foreign
        raise answer

    def blocks(self, request: dict[str, Any]) -> Iterator[bytes]:
        for block in self.file.blocks(request["offset"], request["size_bytes"]):
            if self.broken.is_set():
                raise _Stopped
            yield block


def _past(t: str | None) -> bool:
    return t is not None and _parse_time(t) < time.time()


# Checking


@dataclasses.dataclass(frozen=True)
class Checked:
    """What catalogd says of a unit that it was asked about."""

    #: The unit, as it was given to `Catalog.check`.
    unit: UnitRef
    #: None where it has none, for its `error`.
    key: str | None
    #: `done` has a row; `stale` has none, and its place holds another's; `new` has none, nor has its place.
    status: Literal["done", "stale", "new", "running", "quarantined", "lost"] | None
    #: Whether it should be run now.
    due: bool
    #: Whether its place shows its output.
    current: bool
    #: Name of its output below the store's root.
    object_key: str | None
    #: Why it could not be answered.
    error: Refused | None


class _Check:
    """A check of a stream: a thread sends, and whoever iterates reads. One thread for both would wait for ever."""

    def __init__(self, catalog: Catalog, units: Iterable[UnitRef], verify: bool) -> None:
        self.catalog, self.units = catalog, units
        self.path = "/v1/units:check" + ("?verify=head" if verify else "")
        self.asked: collections.deque[UnitRef] = collections.deque()
        self.failed: BaseException | None = None  # of units

    def run(self) -> Iterator[Checked]:
        patience = self.catalog.patience
        c, target = self.catalog._patiently(self.connect, patience=patience)
        sender: threading.Thread | None = None
        sock: socket.socket = c.sock
        try:
            try:
                c.putrequest("POST", target)
                for name, value in {**self.catalog._headers(), "Content-Type": "application/x-ndjson", "Transfer-Encoding": "chunked"}.items():
                    c.putheader(name, value)
                c.endheaders()
                sender = threading.Thread(target=self.send, args=(sock,), name="catalogd-check", daemon=True)
                sender.start()
                response = c.getresponse()
                if response.status != 200:
                    refused = _refusal(response.status, response.read())
                    raise Unavailable(self.catalog.url, str(refused)) if _passes(refused) else refused
                yield from self.read(response)
            except (OSError, http.client.HTTPException) as e:
                if self.failed is not None:
                    raise self.failed from None
                raise self.cut_off(_say(e)) from e
        finally:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # a sender that is left ends
            if sender is not None and self.failed is None:
                sender.join(1)
            c.close()

    def connect(self) -> tuple[http.client.HTTPConnection, str]:
        try:
            return _connect(self.catalog.url + self.path, _ANSWER_WITHIN, 2 * _ANSWER_WITHIN)
        except (OSError, http.client.HTTPException) as e:
            raise _NoAnswer(_say(e)) from e

    def cut_off(self, why: str) -> Unavailable:
        return Unavailable(self.catalog.url, f"the answer was cut off ({why}): check again, and collect what is due before working on it")

    def send(self, sock: socket.socket) -> None:
        try:
            lines: list[bytes] = []
            size, last = 0, time.monotonic()
            for unit in self.units:
                line = _unit_line(unit)
                self.asked.append(unit)
                lines.append(line)
                size += len(line)
                if size > 32 << 10 or time.monotonic() - last > 1:
                    self.chunk(sock, lines)
                    size, last = 0, time.monotonic()
            self.chunk(sock, lines)
            sock.sendall(b"0\r\n\r\n")
        except OSError as e:
            if isinstance(e, (BrokenPipeError, ConnectionError, TimeoutError)) or e.errno == errno.EBADF:
                return  # the reader hears of it, or has gone
            self.fail(sock, e)
        except BaseException as e:
            self.fail(sock, e)

    def fail(self, sock: socket.socket, e: BaseException) -> None:
        self.failed = e
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def chunk(sock: socket.socket, lines: list[bytes]) -> None:
        if lines:
            body = b"".join(lines)
            lines.clear()
            sock.sendall(b"%x\r\n%s\r\n" % (len(body), body))

    def read(self, response: http.client.HTTPResponse) -> Iterator[Checked]:
        answered = 0
        for line in _lines(response):
            if "summary" in line:
                if "error" in line:
                    p = line["error"]
                    raise Unavailable(self.catalog.url, f"{p.get('detail', '')} ({p.get('code', '')}); {line['summary']['total']} units were answered")
                if self.failed is not None:
                    raise self.failed
                if line["summary"]["total"] != answered or self.asked:
                    raise self.cut_off(f"{line['summary']['total']} answers were sent, and {answered} came")
                return
            answered += 1
            error = None
            if "error" in line:
                e = line["error"]
                error = Refused(400, e["code"], e["detail"], e.get("field", ""))
            yield Checked(self.asked.popleft(), line.get("unit_key"), line.get("status"), line.get("due", False),
                          line.get("current", False), line.get("object_key"), error)
        if self.failed is not None:
            raise self.failed
        raise self.cut_off("its last line did not come")


def _lines(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Those that came whole, of NDJSON."""
    for raw in response:
        if not raw.endswith(b"\n"):
            return
        yield json.loads(raw)


def _unit_line(unit: UnitRef) -> bytes:
    ref: Mapping[str, Any]
    if isinstance(unit, str):
        ref = {"unit_key": unit}
    elif isinstance(unit, Unit):
        ref = {"collection": unit.collection, "tile_id": unit.tile_id, "identity": unit.identity}
    elif isinstance(unit, tuple):
        collection, tile_id, identity = unit
        ref = {"collection": collection, "tile_id": tile_id, "identity": _as_mapping(identity)}
    else:
        ref = unit
    return json.dumps(ref, separators=(",", ":"), default=_as_json).encode() + b"\n"


def _as_mapping(identity: Identity) -> Mapping[str, Any]:
    if isinstance(identity, Mapping):
        return identity
    members: dict[str, Any] = json.loads(canonical_identity(identity))
    return members


def _as_json(v: Any) -> Any:
    if isinstance(v, Mapping):
        return dict(v)
    if isinstance(v, numbers.Integral):
        return operator.index(v)
    raise TypeError(f"a {type(v).__module__}.{type(v).__qualname__} is nothing that JSON has: send it as text, number, list or object")


# Batches

_ADD_UNITS, _ADD_BYTES = 5000, 4 << 20
_MAX_ERRORS = 100
_GATE_WAIT = 20.0


class Batch:
    """A set of expected units of one collection, judged together. See `Catalog.open_batch` and `Catalog.batch`.

    It may be used by many threads, and be sent to other processes. Its name can be given wherever a batch is.
    """

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.name = name
        self._catalog = catalog
        self._path = "/v1/batches/" + urllib.parse.quote(name, safe="")

    def __repr__(self) -> str:
        return f"<Batch {self.name}>"

    def status(self) -> dict[str, Any]:
        """How it stands: what the contract calls a BatchStatus, with `batch`, `counts`, `failures` and its last `gate`."""
        return _object(self._catalog._call("GET", self._path))

    def add(self, units: Iterable[ExpectedUnit]) -> dict[str, int]:
        """Adds units that are expected, as they come; what the batch has already is passed over.

        Gives how many there were in `total`, `added`, `present` before, and are `expected` by the batch now. Raises
        `NotAdded` at the end where some were refused.
        """
        sums = {"total": 0, "added": 0, "present": 0, "refused": 0, "expected": 0}
        errors: list[dict[str, Any]] = []
        for chunk in _chunks(map(_expected_line, units)):
            answer = self._add(chunk)
            errors += [{**e, "line": sums["total"] + e["line"]} for e in answer["errors"][: _MAX_ERRORS - len(errors)]]
            for name in sums:
                sums[name] = answer[name] + (0 if name == "expected" else sums[name])
        if sums["refused"]:
            raise NotAdded(self.name, sums["refused"], errors)
        return sums

    def _add(self, chunk: bytes) -> dict[str, Any]:
        def once() -> dict[str, Any]:
            answer = _object(self._catalog._once("POST", self._path + "/units", chunk, {"Content-Type": "application/x-ndjson"}, _ANSWER_WITHIN))
            if "error" in answer:  # which ended it before all were looked at
                raise Refused(int(answer["error"]["status"]), answer["error"]["code"], answer["error"].get("detail", ""))
            return answer

        return self._catalog._patiently(once, patience=self._catalog.patience)

    def pending(self) -> Iterator[Unit]:
        """The units that are due now, as they come, for tasks that are to be one for each: see `claim` else.

        Whoever takes a minute over one is cut off. An answer that was cut off raises `Unavailable` at its end.
        """
        collection = str(self.status()["batch"]["collection"])
        c, response = self._catalog._patiently(self._ask_pending, patience=self._catalog.patience)
        came = 0
        with contextlib.closing(c):
            try:
                for line in _lines(response):
                    if "summary" not in line:
                        came += 1
                        yield self._unit(collection, line)
                    elif "error" in line:
                        raise Unavailable(self._catalog.url, f"{line['error'].get('detail', '')}; {came} pending units came")
                    elif line["summary"]["pending"] == came:
                        return
            except (OSError, http.client.HTTPException) as e:
                raise Unavailable(self._catalog.url, f"the list was cut off ({_say(e)}) after {came} units: ask again") from e
        raise Unavailable(self._catalog.url, f"the list was cut off after {came} units: ask again")

    def _ask_pending(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        try:
            c, target = _connect(self._catalog.url + self._path + "/pending", _ANSWER_WITHIN, _ANSWER_WITHIN)
        except (OSError, http.client.HTTPException) as e:
            raise _NoAnswer(_say(e)) from e
        try:
            c.request("GET", target, headers=self._catalog._headers())
            response = c.getresponse()
            if response.status != 200:
                raise _refusal(response.status, response.read(), response.headers.get("Retry-After"))
            return c, response
        except (OSError, http.client.HTTPException) as e:
            c.close()
            raise _NoAnswer(_say(e)) from e
        except BaseException:
            c.close()
            raise

    def claim(self, max: int = 50, *, owner: str | None = None, media_type: str | None = None) -> Shard:
        """Hands out units that are due, at most `max` of them (1000), each to nobody else, with an attempt begun.

        Enter each with `with`: it is never `done`. Their leases are kept meanwhile, so what is not going to be
        entered is given back: by the `with` of the shard, by `Shard.give_back`, or when the process ends.
        `owner` is by default the catalog's.
        """
        question: dict[str, Any] = {"max": max, "owner": owner or self._catalog._origin()[0], "request_id": uuid.uuid4().hex}
        if media_type is not None:
            question["media_type"] = media_type
        answer = _object(self._catalog._call("POST", self._path + "/claim", question))
        units = [self._unit(u["collection"], u)._claimed(u["attempt"], u["tags"]) for u in answer["units"]]
        return Shard(units, answer.get("retry_after"))

    def _unit(self, collection: str, u: dict[str, Any]) -> Unit:
        return Unit(self._catalog, collection, u["tile_id"], u["identity"]).options(batch=self, client_key=u.get("client_key"))

    def units(self, max: int = 50, *, owner: str | None = None, media_type: str | None = None) -> Iterator[Unit]:
        """Claims units until nothing is left to do, and waits while only others' units and pauses are left.

        At most `max` are held at a time: fewer where each takes long, so that the last ones are shared. What
        was not entered when the loop is left is given back.
        """
        pause = _FIRST_PAUSE
        while True:
            with self.claim(max, owner=owner, media_type=media_type) as shard:
                yield from shard
            if shard:
                pause = _FIRST_PAUSE
            elif shard.retry_after is None:
                return
            else:  # sooner than leases end: the others may be done before
                time.sleep(min(shard.retry_after, pause / 2 + random.random() * pause))
                pause = min(2 * pause, _LAST_WAIT)

    def gate(
        self, max_missing_frac: float = 0, max_quarantined: int | None = None, *, storage: Literal["list", "sample", "none"] = "list",
        sample_size: int | None = None, wait: bool = True,
    ) -> Gate:
        """Judges the batch: true where at most that share of its units is missing, quarantined ones included.

        `storage` is what is compared with the store: every output by a listing, a sample of `sample_size`, or
        nothing. Without `wait` the gate may be `queued` or `running`, which is not true. Raises `NotJudged`.
        """
        asked: dict[str, Any] = {"max_missing_frac": max_missing_frac, "storage": storage}
        for name, value in (("max_quarantined", max_quarantined), ("sample_size", sample_size)):
            if value is not None:
                asked[name] = value
        prefer = {"Prefer": f"wait={_GATE_WAIT if wait else 0:.0f}"}
        gate = Gate(_object(self._catalog._call("POST", self._path + "/gate", asked, within=_ANSWER_WITHIN, headers=prefer)))
        while wait and not gate.ended:
            time.sleep(1)
            gate = Gate(_object(self._catalog._call("GET", f"{self._path}/gate/{gate.id}")))
        if gate.state == "error":
            error = gate.answer.get("error") or {}
            raise NotJudged(f"batch {self.name} could not be judged: {error.get('detail', '')} ({error.get('code', '')})")
        return gate

    def release(self, why: str, *, class_: str | None = None, reason: str | None = None) -> int:
        """Has what is quarantined of the batch tried again, and gives how many. Takes a token of the role admin."""
        asked = {"batch": self.name, "why": why} | ({"class": class_} if class_ else {}) | ({"reason": reason} if reason else {})
        return int(_object(self._catalog._call("POST", "/v1/quarantine:release", asked))["released"])


class Shard(list[Unit]):
    """Claimed units. In a `with`, what was not entered at its end is given back."""

    def __init__(self, units: list[Unit], retry_after: float | None) -> None:
        super().__init__(units)
        #: Where it is empty: seconds after which more may be due; None where nothing is left to do.
        self.retry_after = retry_after

    def give_back(self) -> None:
        """Gives up those that were not entered: they are due again at once."""
        _give_back(self)

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


@dataclasses.dataclass(frozen=True)
class Gate:
    """A judgement of a batch; true where it passed."""

    #: What the contract calls a Gate.
    answer: dict[str, Any] = dataclasses.field(repr=False)

    @property
    def state(self) -> str:
        """"queued", "running", "passed" or "failed"."""
        return str(self.answer["state"])

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")

    @property
    def id(self) -> str:
        return str(self.answer["gate_id"])

    @property
    def reasons(self) -> list[str]:
        """Why it failed: too_many_missing, too_many_quarantined, disagreement, empty."""
        return list(self.answer["reasons"])

    @property
    def figures(self) -> dict[str, Any]:
        """`expected`, `done`, `quarantined`, `missing`, `missing_frac`, …; empty until it has ended."""
        return dict(self.answer.get("figures") or {})

    @property
    def offenders(self) -> list[dict[str, Any]]:
        """The units that are not done, a thousand at most: `tile_id`, `status`, `reason`, `unit_key`."""
        return list(self.answer["offenders"])

    def __bool__(self) -> bool:
        return self.state == "passed"

    def __str__(self) -> str:
        said = f"batch {self.answer['batch']} {self.state}"
        if self.reasons:
            said += f" ({', '.join(self.reasons)})"
        f = self.figures
        if f:
            said += f": {f['missing']} of {f['expected']} missing ({f['missing_frac']:.5f}), {f['quarantined']} quarantined, {f['lost']} lost"
        return said


def _chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Requests' worth of lines."""
    chunk: list[bytes] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if len(chunk) == _ADD_UNITS or size > _ADD_BYTES:
            yield b"".join(chunk)
            chunk, size = [], 0
    if chunk:
        yield b"".join(chunk)


def _expected_line(unit: ExpectedUnit) -> bytes:
    ref: dict[str, Any]
    if isinstance(unit, Unit):
        ref = {"collection": unit.collection, "tile_id": unit.tile_id, "identity": unit.identity}
        if "client_key" in unit._said:
            ref["client_key"] = unit._said["client_key"]
    elif isinstance(unit, tuple):
        said: tuple[Any, ...] = unit
        ref = {"tile_id": said[0], "identity": _as_mapping(said[1])} | ({"geometry": said[2]} if len(said) == 3 else {})
    else:
        ref = dict(unit)
    if "geometry" in ref:
        ref["geometry"] = getattr(ref["geometry"], "__geo_interface__", ref["geometry"])
    return json.dumps(ref, separators=(",", ":"), default=_as_json).encode() + b"\n"
