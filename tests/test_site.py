"""The site builds without a warning, documents every public name, and works in a browser.

The browser's tests need Chromium (`apt-get install chromium`) and are skipped where there is none.
"""

import fcntl
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from PIL import Image
from sphinx.util.inventory import InventoryFile

import rekindle as rk
from covering import each_value

ROOT = Path(__file__).parent.parent
PUBLIC = [
    *(f"rekindle.{name}" for name in rk.__all__),
    *(f"rekindle.transforms.{name}" for name in rk.transforms.__all__),
]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)
pytestmark = pytest.mark.timeout(900)  # On a busy machine, the pages take minutes to build.
SCHEMES = {
    "dark": "--blink-settings=preferredColorScheme=0",
    "light": "--blink-settings=preferredColorScheme=1",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages; built once, also where several processes run tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    pages, log = shared / "site", shared / "site.log"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            flags = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html"]
            command = [sys.executable, "-m", "sphinx", *flags, "--doctree-dir", str(shared / "doctrees")]
            done = subprocess.run(
                [*command, str(ROOT / "docs"), str(pages)], capture_output=True, text=True, check=False
            )
            log.write_text(done.stdout + done.stderr, encoding="utf-8")
    assert log.read_text(encoding="utf-8") == "", "the site has warnings"
    return pages


class Page(HTMLParser):
    """The ids, links and resources of a page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.resources = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag in ("script", "img", "source") and "src" in attributes:
            self.resources.append(attributes["src"])
        if tag == "link" and attributes.get("rel") in ("stylesheet", "icon"):
            self.resources.append(attributes["href"])


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_the_site_builds_without_a_warning(site):
    assert (site / "index.html").exists()


def test_every_public_name_is_in_the_reference(site, pages):
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {
        name: item for domain, items in inventory.data.items() if domain.startswith("py:")
        for name, item in items.items()
    }  # fmt: skip
    assert [name for name in PUBLIC if name not in documented] == []
    for name in PUBLIC:
        file, _, anchor = documented[name].uri.partition("#")
        assert file.startswith("reference/"), name
        assert anchor.replace("$", name) in pages[site / file].ids, name


def test_every_command_is_in_the_reference(site):
    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for words in (
        "rekindle pack",
        "--raw-share",
        "rekindle info",
        "rekindle verify",
        "rekindle dedupe",
        "--threshold",
    ):
        assert words in text


def test_every_link_within_the_site_leads_somewhere(site, pages):
    broken, followed = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            followed += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].ids if target in pages else ()
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in known):
                broken.append((path.name, link))
    assert broken == []
    assert followed > 1000


def test_pages_load_nothing_from_elsewhere(site, pages):
    for path, page in pages.items():
        assert page.resources
        for resource in page.resources:
            assert not urlsplit(resource).netloc, (path.name, resource)
            assert (path.parent / unquote(urlsplit(resource).path)).exists(), (path.name, resource)


def test_the_guides_link_public_names_to_the_reference(site, pages):
    assert any("reference/reuse.html#rekindle.Refurbish" in link for link in pages[site / "reuse.html"].links)
    assert any("reference/datasets.html#rekindle.open" in link for link in pages[site / "images.html"].links)


# In a browser.


@pytest.fixture(scope="module")
def address(site):
    """Where a server on this machine serves the site."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium to open the site with (Debian: apt-get install chromium)")
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


def browse(url, folder, *flags):
    """What Chromium has made of a page when its scripts have run."""
    line = [
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=20000",
        *flags,
        url,
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_browser_shows_the_reference_with_its_entries(address, tmp_path):
    page = browse(f"{address}/reference/loader.html", tmp_path, "--dump-dom")
    assert 'id="rekindle.DataLoader"' in page
    assert 'id="rekindle.DataLoader.state_dict"' in page
    assert 'id="rekindle.Report.to_html"' in page
    assert "error_budget" in page


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Refurbish", "reference/reuse.html#rekindle.Refurbish"),
        pytest.param(
            *("RandAugment", "reference/transforms.html#rekindle.transforms.RandAugment"),
            marks=pytest.mark.slow,
        ),
        pytest.param("near-duplicates", "near-duplicates.html", marks=pytest.mark.slow),
    ],
)
def test_the_search_finds_it(address, tmp_path, asked, found):
    page = browse(f"{address}/search.html?q={asked}", tmp_path, "--dump-dom")
    results = re.search(r'<ul[^>]*class="search"[^>]*>(.*?)</ul>', page, re.S)
    assert results is not None, "the search's script did not run"
    assert f'href="{found}' in results[1]


@pytest.mark.parametrize(("name", "scheme"), each_value(["index", "how-it-works"], ["light", "dark"]))
def test_pages_and_their_pictures_are_light_or_dark_as_the_reader_has_it(address, tmp_path, name, scheme):
    is_dark = scheme == "dark"
    shot = tmp_path / "shot.png"
    browse(
        f"{address}/{name}.html", tmp_path, SCHEMES[scheme], "--window-size=1200,900", f"--screenshot={shot}"
    )
    pixels = np.asarray(Image.open(shot).convert("L"), dtype=float)
    right_half = pixels[:, 600:]  # beside the navigation: text, and the picture
    assert (np.median(pixels) < 60) == is_dark
    assert (np.mean(right_half < 128) > 0.8) if is_dark else (np.mean(right_half > 128) > 0.8)
