"""Servers that lie, never end, or send others elsewhere; URLs and headers that hold secrets."""

import http.server
import io
import tarfile
import threading
import traceback

import pytest
from PIL import Image

import rekindle as rk
from rekindle.fetch import open_source
from rekindle.fetch.remote import object_store
from rekindle.fetch.remote.object_store import RemoteObject, RemoteStore
from rekindle.fetch.remote.redact import text_without_secrets, without_secrets

SECRETS = ("pw5ecret", "s1gnature", "t0ken", "k3y-of-mine")
HEADERS = {"Authorization": "Bearer t0ken", "X-Api-Key": "k3y-of-mine"}


def _tar():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number in range(3):
            image = io.BytesIO()
            Image.new("RGB", (16, 16), (80 * number, 0, 0)).save(image, "PNG")
            member = tarfile.TarInfo(f"{number}.png")
            member.size = image.tell()
            archive.addfile(member, io.BytesIO(image.getvalue()))
    return file.getvalue()


TAR = _tar()


class Liar(http.server.BaseHTTPRequestHandler):
    """Tells the truth about /true.tar; the other paths name what is wrong with them."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        kind = self.path.partition("?")[0].strip("/").partition(".")[0]
        self.server.seen.append((kind, {name.lower(): value for name, value in self.headers.items()}))
        asked = self.headers.get("Range")
        if kind in ("elsewhere", "file"):
            self.redirect("file:///etc/hosts" if kind == "file" else self.server.other)
        elif kind == "forbidden":
            self.head(403, 0)
        elif not body:
            self.head(200, len(TAR))
        elif asked is None or kind in ("whole", "wholeendless"):
            self.head(200, None if kind == "wholeendless" else len(TAR))
            self.body(kind, TAR)
        else:
            self.answer_range(kind, asked)

    def answer_range(self, kind, asked):
        first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
        part, extra = TAR[first : last + 1], {}
        length, total = len(part), len(TAR)
        if kind == "longer":
            length = 10**12
        if kind == "shifted":
            first, last = first + 512, last + 512
        if kind == "resized":
            total += 512
        if kind == "packed":
            extra = {"Content-Encoding": "gzip"}
        if kind == "norange":
            first = "x"
        extra["Content-Range"] = f"bytes {first}-{last}/{total}"
        self.head(206, None if kind == "endless" else length, **extra)
        self.body(kind, part)

    def redirect(self, location):
        self.send_response(302)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def head(self, status, length, **extra):
        self.send_response(status)
        self.send_header("ETag", '"1"' if self.path != "/strange.tar" else '"\xff\xfe"')
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        for name, value in extra.items():
            self.send_header(name, value)
        self.end_headers()

    def body(self, kind, part):
        try:
            if kind == "drips":
                while not self.server.ended.wait(0.02):
                    self.wfile.write(b"")
                self.close_connection = True
            elif kind in ("endless", "wholeendless"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                zeros = b"%x\r\n%s\r\n" % (1 << 20, bytes(1 << 20))
                while self.server.sent < 500 << 20:
                    self.wfile.write(zeros)
                    self.server.sent += 1 << 20
            else:
                self.wfile.write(part)
                self.close_connection = kind == "longer"
        except OSError:
            self.close_connection = True


@pytest.fixture
def liar():
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        server.seen, server.sent, server.ended = [], 0, threading.Event()
        server.host = f"127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    servers[0].other, servers[0].second = f"http://{servers[1].host}/true.tar", servers[1]
    yield servers[0]
    for server in servers:
        server.ended.set()
        server.shutdown()
        server.server_close()


def options(headers=None, **others):
    storage = {} if headers is None else {"headers": headers}
    given = {"storage_options": storage, "cache_bytes": 0, "deadline": 20.0, **others}
    return rk.RemoteOptions(**given)


def fetched(liar, kind, **others):
    """Bytes 600 to 699 of the tar file, as a server sends them."""
    store = RemoteStore(f"http://{liar.host}/{kind}.tar", options(**others))
    return store.fetch(store.describe(store.path), 600, 100)


@pytest.mark.parametrize("kind", ["true", "whole", "wholeendless", "strange"])
def test_a_range_is_what_was_asked_for(liar, kind):
    assert fetched(liar, kind) == TAR[600:700]
    assert liar.sent < 64 << 20, "the rest is not read"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("endless", "more than the 100 bytes"),
        ("longer", "sends 1000000000000 bytes instead of 100"),
        ("resized", "has changed"),
        ("packed", "compressed"),
    ],
)
def test_a_server_that_lies_is_refused_at_once(liar, kind, why):
    with pytest.raises(rk.RemoteError, match=rf"{kind}.tar.*at byte 600 .*1 attempt .*{why}"):
        fetched(liar, kind)
    assert liar.sent < 64 << 20, "an endless body is not read"


@pytest.mark.parametrize("kind", ["shifted", "norange", "drips"])
def test_a_server_that_sends_something_else_or_nothing_is_given_up(liar, kind):
    with pytest.raises(rk.RemoteError, match=f"{kind}.tar"):
        fetched(liar, kind, deadline=0.4, attempt_timeout=0.3)


def test_a_deadline_does_not_grow_with_what_a_server_claims(monkeypatch):
    """An object said to have 10**15 bytes is not waited for 484 years."""
    given = []

    def with_retries(action, what, policy, secrets):
        given.append((policy.deadline, policy.attempt_timeout))
        raise rk.RemoteError("no answer")

    monkeypatch.setattr(object_store, "with_retries", with_retries)
    store = RemoteStore("http://127.0.0.1:1/x.tar", options(deadline=10.0, attempt_timeout=5.0))
    with pytest.raises(rk.RemoteError):
        store.fetch(RemoteObject(store.path, 10**15, "00"), 0, 10**15)
    ((deadline, timeout),) = given
    assert deadline <= 10 + 256
    assert timeout <= 5 + 256


def test_a_large_range_is_read_in_parts(liar, monkeypatch):
    monkeypatch.setattr(object_store, "_PART", 700)
    store = RemoteStore(f"http://{liar.host}/true.tar", options())
    wanted = store.describe(store.path)
    assert store.fetch(wanted, 100, wanted.size - 100) == TAR[100:]
    assert store.fetch(wanted, 0, 0) == b""


@pytest.mark.parametrize("size", [-1, 2**64, 10**30, None, "7"])
def test_a_size_that_no_object_has_is_an_error(size):
    store = RemoteStore("http://127.0.0.1:1/x.tar", options())
    with pytest.raises(rk.RemoteError, match="size"):
        store.object_of({"name": "http://127.0.0.1:1/x.tar", "size": size})


def test_a_redirect_to_another_server_takes_no_key_along(liar):
    data = open_source(f"http://{liar.host}/elsewhere.tar", remote=options(HEADERS))
    assert len(data) == 3
    mine, others = liar.seen, liar.second.seen
    assert all(headers["x-api-key"] == "k3y-of-mine" for _, headers in mine)
    assert others
    for _, headers in others:
        assert not {"x-api-key", "authorization", "cookie"} & set(headers)
    assert any("range" in headers for _, headers in others)


def test_a_redirect_to_a_file_is_refused(liar):
    with pytest.raises(rk.RemoteError):
        rk.open(f"http://{liar.host}/file.tar", remote=options())


def everything(error):
    """All that an exception and those that it keeps would show, hidden or not."""
    seen, waiting, text = set(), [error], ""
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            waiting += [one.__cause__, one.__context__]
            text += "".join(traceback.format_exception_only(one)) + repr(one) + str(one.args)
    return text


@pytest.mark.parametrize(
    "url",
    [
        "http://me:pw5ecret@HOST/forbidden.tar?sig=s1gnature",
        "http://me:pw5ecret/x@HOST/forbidden.tar",
        "http://me:pw5ecret#/?x@HOST/forbidden.tar",
        "http://me:a@pw5ecret:7@HOST/forbidden.tar",
        "http://me:pw5ecret and more@HOST/forbidden.tar",
        "http://HOST/forbidden.tar#sig=s1gnature",
        "http://HOST/forbidden.tar?a=1&sig=s1gnature",
    ],
)
@pytest.mark.parametrize("headers", [None, HEADERS], ids=["plain", "with headers"])
def test_no_error_shows_a_secret(liar, url, headers):
    with pytest.raises(rk.RekindleError) as caught:
        rk.open(url.replace("HOST", liar.host), remote=options(headers, deadline=1.0))
    shown = everything(caught.value)
    assert not [secret for secret in SECRETS if secret in shown], shown
    assert "forbidden.tar" in str(caught.value)


def test_nothing_that_is_opened_shows_a_secret(liar):
    url = f"http://me:pw5ecret@{liar.host}/true.tar?sig=s1gnature"
    data = open_source(url, remote=options({"X-Api-Key": "k3y-of-mine"}))
    (file,) = data.files
    shown = repr([data, file, file.reader, file.object, file.for_indexing(), data.path(0), data.version()])
    assert not [secret for secret in SECRETS if secret in shown], shown
    assert "true.tar" in repr(file.object)


@pytest.mark.parametrize("name", ["\x1b]0;title\x07", "\x9b2J", "\u202egpj", "\udcff"])
def test_no_error_shows_what_a_terminal_would_obey(liar, name):
    with pytest.raises(rk.RemoteError) as caught:
        rk.open(f"http://{liar.host}/forbidden.{name}.tar", remote=options(deadline=1.0))
    assert everything(caught.value).replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:pass/word@host:80/x", "http://host:80/x"),
        ("http://me:p@ss/w?o#rd@host/x", "http://host/x"),
        ("http://me:p w@host/x y.jpg", "http://host/x y.jpg"),
        ("http://host/x#sig=1", "http://host/x"),
        ("https://host/a@b.jpg", "https://host/a@b.jpg"),
        ("s3://bucket/a@b.jpg", "s3://bucket/a@b.jpg"),
        ("http://host:8080/x", "http://host:8080/x"),
        ("http://me:123/4@host/x", "http://me:123/…@host/x"),  # a port, or the beginning of a password
    ],
)
def test_what_is_shown_of_a_url(url, shown):
    assert without_secrets(url) == shown
    if " " not in url:
        assert text_without_secrets(f"GET <{url}> failed") == f"GET <{shown}> failed"
