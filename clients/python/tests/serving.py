"""Real servers for the tests, on a directory and on S3. `go test` says how they are started."""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import http.server
import itertools
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
CLIENT = HERE.parent
ROOT = CLIENT.parent.parent
sys.path.insert(0, str(CLIENT))

import catalogd  # noqa: E402

TOKEN = "catd_" + "t" * 43

if "CATALOGD_TEST_SERVE" not in os.environ:
    raise SystemExit("run these by `make test-python`, which starts what they need")
SETTINGS: dict[str, Any] = json.loads(os.environ["CATALOGD_TEST_SERVE"])
PROGRAM: str = SETTINGS["program"]

# What the caller's own pipeline says is not the tests'.
for name in list(os.environ):
    if name.startswith(("CATALOGD_", "AIRFLOW_CTX_", "DAGSTER_", "SLURM_", "CELERY_", "KUBERNETES_")) and name != "CATALOGD_TEST_SERVE":
        del os.environ[name]

# Private files of outputs are seen to go.
tempfile.tempdir = os.path.join(SETTINGS["dir"], "tmp")
os.makedirs(tempfile.tempdir, exist_ok=True)
os.environ["TMPDIR"] = tempfile.tempdir


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


class Server:
    """A catalogd that can be killed, and started again at the same place."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.url = f"http://127.0.0.1:{free_port()}"
        self.root: str = SETTINGS[kind]["root"]  # of a directory
        self.args: list[str] = SETTINGS[kind]["args"]
        if kind == "s3":  # whose store is reached over a line
            self.line = Line(SETTINGS[kind]["endpoint"])
            self.args = [*self.args[:-1], self.args[-1] + "&public_endpoint=" + self.line.url]
        self.log = open(os.path.join(SETTINGS["dir"], kind + ".log"), "ab")
        self.start()
        atexit.register(self.kill)

    def start(self) -> None:
        args = [PROGRAM, "serve", *self.args, "--listen", self.url[len("http://"):], "--lease", "6s", "--recover-every", "1s"]
        env = {**os.environ, **SETTINGS[self.kind]["env"], "CATALOGD_ADMIN_TOKEN": TOKEN, "CATALOGD_PROBE": SETTINGS["probe"]}
        self.process = subprocess.Popen(args, env=env, stderr=self.log)
        for _ in range(300):
            try:
                with urllib.request.urlopen(self.url + "/readyz", timeout=5):
                    return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        raise RuntimeError(f"the server does not serve: see {self.log.name}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def catalog(self, **options: Any) -> catalogd.Catalog:
        return catalogd.Catalog(self.url, TOKEN, **options)

    def env(self, **more: str) -> dict[str, str]:
        """For a process of its own that uses the client."""
        return {**os.environ, "PYTHONPATH": f"{CLIENT}:{HERE}", "CATALOGD_URL": self.url, "CATALOGD_TOKEN": TOKEN, **SETTINGS[self.kind]["gdal"], **more}

    def ask(self, path: str) -> Any:
        request = urllib.request.Request(self.url + path, headers={"Authorization": "Bearer " + TOKEN})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def attempts(self, collection: str) -> list[tuple[str, str]]:
        """Tile and state of each attempt there was, in their order."""
        said = self.sql(f"""SELECT u.tile_id || '|' || a.state FROM catalog.attempts a JOIN catalog.units u USING (unit_key)
            WHERE u.collection_id = '{collection}' ORDER BY a.attempt_id""")
        return [(tile, state) for tile, _, state in (line.partition("|") for line in said.splitlines())]

    def sql(self, query: str) -> str:
        out = subprocess.run(["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", SETTINGS[self.kind]["database"], "-c", query], capture_output=True, text=True, check=True)
        return out.stdout.strip()


@functools.cache
def server(kind: str) -> Server:
    return Server(kind)


class Line:
    """A proxy between the tasks and the S3 gateway, which a test disturbs."""

    def __init__(self, endpoint: str) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []  # method, target, headers
        self.calm()
        line = self
        gateway = urllib.parse.urlsplit(endpoint)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                line.seen.append((self.command, self.path, dict(self.headers.items())))
                answer = line.before(self.command, self.path)
                if answer is None:
                    c = http.client.HTTPConnection(gateway.hostname or "", gateway.port, timeout=60)
                    with contextlib.closing(c):
                        c.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                        for name, value in self.headers.items():
                            c.putheader(name, value)
                        c.endheaders()
                        if "Expect" in self.headers:
                            select.select([c.sock], [], [], 1)
                        with contextlib.suppress(ConnectionError):  # who refuses says so, and reads no further
                            c.send(body)
                        r = c.getresponse()
                        answer = r.status, [(k, v) for k, v in r.getheaders() if k.lower() not in ("content-length", "transfer-encoding", "connection")], r.read()
                    if line.cut(self.command, self.path):
                        self.close_connection = True
                        return
                status, headers, content = answer
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # whoever hangs up has his reasons

        self.http = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def calm(self) -> None:
        """Ends all disturbance, and forgets what was seen."""
        self.seen.clear()
        self.before: Callable[[str, str], Answer | None] = lambda method, target: None
        self.cut: Callable[[str, str], bool] = lambda method, target: False

    def puts(self) -> list[tuple[str, dict[str, str]]]:
        return [(target, headers) for method, target, headers in self.seen if method == "PUT"]


Answer = tuple[int, list[tuple[str, str]], bytes]


def refusal(status: int, code: str) -> Answer:
    """What S3 says."""
    return status, [("Content-Type", "application/xml")], f"<Error><Code>{code}</Code><Message>for the test</Message></Error>".encode()


def first(times: int, then: Any, otherwise: Any = None) -> Callable[[str, str], Any]:
    """Of the first PUTs."""
    left = itertools.count()

    def what(method: str, target: str) -> Any:
        return then if method == "PUT" and next(left) < times else otherwise

    return what
