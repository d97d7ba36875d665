"""Data over HTTP: servers that restart, URLs with secrets, and servers that tell little of what they have."""

from __future__ import annotations

import email.utils
import functools
import gzip
import http.server
import os
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

import rekindle as rk
from rekindle.fetch import open_source, writer_for
from rekindle.fetch.remote import retry
from rekindle.fetch.remote.files import remote_files
from rekindle.fetch.remote.object_store import RemoteStore
from rekindle.fetch.remote.redact import text_without_secrets, without_secrets
from rekindle.fetch.remote.retry import is_final
from rekindle.fetch.source import Source
from rekindle.tools.cli import main

PASSWORD, SIGNATURE = "swordfish", "X-Amz-Signature=0a1b2c"


class Site:
    """A folder over HTTP. The next `failures` requests are answered with `status`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder / "site", folder / "cache"
        self.folder.mkdir()
        self.failures, self.status = 0, 503
        self.tells_time = True
        self.asked: list[str] = []
        handler = functools.partial(_Handler, self, directory=str(self.folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
        self.server.server_bind()  # It does not listen yet: whoever comes is refused.
        self.host = f"127.0.0.1:{self.server.server_address[1]}"

    def start(self) -> None:
        self.server.server_activate()
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def options(self, **others: Any) -> rk.RemoteOptions:
        return rk.RemoteOptions(**{"cache_directory": self.cache, "deadline": 20.0, **others})

    def open(self, name: str, **others: Any) -> Source:
        return open_source(f"http://{self.host}/{name}", remote=self.options(**others))

    def write(self, name: str, shade: int) -> None:
        """A packed file of one image, as many bytes whatever its shade."""
        path = self.folder / "made.tar"
        writer = writer_for(path)
        writer.add("one", np.full((4, 4, 3), shade, np.uint8), 3)
        writer.close()
        content = path.read_bytes()
        packed = gzip.compress(content, 0, mtime=0) if name.endswith(".gz") else content
        (self.folder / name).write_bytes(packed)

    def kept(self) -> list[Path]:
        return [path for path in self.cache.rglob("*") if path.is_file()]


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, site: Site, *arguments: Any, **keywords: Any) -> None:
        self.site = site
        super().__init__(*arguments, **keywords)

    def send_head(self) -> Any:
        self.site.asked.append(f"{self.command} {self.path}")
        if self.site.failures:
            self.site.failures -= 1
            return self.send_error(self.site.status)
        since = self.headers.get("If-Unmodified-Since")
        if since and self._changed() > email.utils.parsedate_to_datetime(since).timestamp():
            return self.send_error(412)
        return super().send_head()

    def _changed(self) -> int:
        return int(os.stat(self.translate_path(self.path)).st_mtime)

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Last-Modified" or self.site.tells_time:
            super().send_header(keyword, value)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site that refuses connections until it is started."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Site(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def site(silent: Site) -> Site:
    silent.start()
    return silent


def shade_of(source: Source) -> int:
    return bytes(source.read(0))[-1]


# Trying again.


def test_a_server_that_starts_a_little_later_is_waited_for(silent: Site) -> None:
    silent.write("x.tar", 7)
    fsspec.filesystem("http")  # To import it takes longer than the server is away.
    later = threading.Timer(0.25, silent.start)
    later.start()
    assert shade_of(silent.open("x.tar")) == 7
    later.join()


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_that_is_not_ready_is_asked_again_when_data_is_opened(site: Site, status: int) -> None:
    site.write("x.tar", 7)
    site.failures, site.status = 3, status
    assert shade_of(site.open("x.tar")) == 7


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_of_the_server_is_final_and_reported(site: Site, status: int) -> None:
    site.failures, site.status = 2, status  # HEAD, then GET
    with pytest.raises(rk.RemoteError, match=rf"x\.tar.*1 attempt.*{status}"):
        site.open("x.tar")


def answer(status: int) -> Exception:
    error = Exception(f"answered {status}")
    error.status = status  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("cause", "final"),
    [
        (None, True),
        (ValueError("NoSuchKey"), True),  # of S3
        (answer(404), True),
        (answer(403), True),
        (answer(429), False),
        (answer(503), False),
        (ConnectionRefusedError(), False),
        (TimeoutError(), False),
        (socket.gaierror(socket.EAI_AGAIN, "later"), False),
        (socket.gaierror(socket.EAI_NONAME, "unknown host"), True),
    ],
)
def test_not_found_is_final_unless_it_stands_for_a_failure(cause: Exception | None, final: bool) -> None:
    error = FileNotFoundError("http://host/x")
    error.__cause__ = cause
    assert is_final(error) is final


# What is not for everybody's eyes.


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https://host/x?{SIGNATURE}", "https://host/x"),
        (f"ftp://me:{PASSWORD}@host/x", "ftp://host/x"),
        (f"ftp://me:a@{PASSWORD}@host/x?{SIGNATURE}", "ftp://host/x"),
        (f"simplecache::https://me:{PASSWORD}@host/x?{SIGNATURE}", "simplecache::https://host/x"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
    ],
)
def test_urls_are_shown_without_secrets_alone_and_in_texts(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
    for text in ("{}", "403, url='{}'", "({}), then\n{} again.", "{}: no", "'{}', '{}'"):
        assert text_without_secrets(text.replace("{}", url)) == text.replace("{}", shown)


def test_a_pattern_of_too_many_files_shows_no_secret() -> None:
    with pytest.raises(rk.ArgumentError, match="more than") as refused:
        rk.open(f"https://me:{PASSWORD}@host/{{0..9999999}}.tar?{SIGNATURE}")
    assert PASSWORD not in str(refused.value)
    assert SIGNATURE not in str(refused.value)


class _Passing:
    """In place of `time`, for retries: it passes while they wait, at once, and no machine is too slow."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.mark.parametrize("status", [404, 403, 503])
def test_errors_show_no_secret_in_message_nor_traceback(
    site: Site, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "time", _Passing())
    site.failures, site.status = 1000, status
    url = f"http://me:{PASSWORD}@{site.host}/x.tar?{SIGNATURE}"
    with pytest.raises(rk.RemoteError) as caught:
        open_source(url, remote=site.options())
    printed = "".join(traceback.format_exception(caught.value))
    assert f"http://{site.host}/x.tar" in printed
    assert str(status) in printed
    assert PASSWORD not in printed
    assert SIGNATURE not in printed


def test_the_command_line_shows_no_secret(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site.folder / "x.tar").write_bytes(b"no tar" * 100)
    url = f"http://me:{PASSWORD}@{site.host}/x.tar?{SIGNATURE}"
    assert main(["verify", "--json", url]) == 1
    assert main(["verify", url]) == 1
    assert main(["info", url.replace("x.tar", "missing.tar")]) == 1
    cat = site.folder / "images" / "cat.jpg"
    cat.parent.mkdir()
    Image.new("RGB", (8, 8)).save(cat)
    assert main(["pack", str(cat.parent.parent), url]) == 2
    out, err = capsys.readouterr()
    assert f'"path": "http://{site.host}/x.tar"' in out
    assert PASSWORD not in out + err
    assert SIGNATURE not in out + err


# Which version it is.


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_of_a_server_that_tells_no_version_nothing_old_is_used(site: Site, name: str) -> None:
    site.tells_time = False
    for shade in (7, 9):
        site.write(name, shade)
        assert shade_of(site.open(name)) == shade
    if name == "x.tar":
        assert not site.kept()


def test_an_index_that_is_not_kept_goes_to_other_processes(site: Site) -> None:
    site.tells_time = False
    site.write("x.tar", 7)
    source = site.open("x.tar")
    site.asked.clear()
    copy = pickle.loads(pickle.dumps(source))
    assert not site.asked
    assert bytes(copy.read(0)) == bytes(source.read(0))


def test_a_file_that_changes_while_it_is_open_is_an_error(site: Site) -> None:
    path = site.folder / "x.bin"
    path.write_bytes(b"old" * 1000)
    file = remote_files(f"http://{site.host}/x.bin", site.options(cache_bytes=0))[0]
    assert file.read(0, 3) == b"old"
    path.write_bytes(b"new" * 1000)
    os.utime(path, (time.time() + 10, time.time() + 10))  # HTTP tells times in seconds.
    with pytest.raises(rk.RemoteError, match=r"x\.bin' at byte 3 .* changed since it was opened"):
        file.read(3, 3)


@pytest.mark.parametrize("field", ["modify", "modificationTime", "modification_time", "mtime", "Digest"])
def test_a_version_is_whatever_a_file_system_calls_it(field: str) -> None:
    store = RemoteStore("memory://x", rk.RemoteOptions())
    plain = {"name": "/x", "size": 5}
    a, b = (store.object_of({**plain, field: when}) for when in ("20260101", "20260102"))
    assert a.is_identified
    assert a.version != b.version
    assert not store.object_of(plain).is_identified
