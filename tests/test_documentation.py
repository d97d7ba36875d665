"""What the documents show is run, what they link to is there, and what they claim is what was measured."""

import doctest
import importlib
import json
import pkgutil
import re
import socket
import warnings
from pathlib import Path

import pytest

import rekindle

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
PAGES = [*DOCUMENTS, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
WITH_EXAMPLES = [
    name
    for finder, name, _ in pkgutil.walk_packages(rekindle.__path__, "rekindle.")
    if ">>> " in finder.find_spec(name).loader.get_source(name)
]

# Blocks of these kinds are shown and not run; every other has to be a kind that is run.
SHOWN = {"sh", "diff", "text", "{toctree}", "{include}", ""}
# What is printed by a document's code and promised in its text.
PRINTED = {
    "README.md": "waited",
    "docs/fault-tolerance.md": "bad sample 13 in epoch 0: OSError: the disk has a scratch",
}
# Words that a reader who knows PyTorch would have to learn, and that the documents therefore do not use.
PRIVATE_WORDS = (
    r"data sets?|near-cop(?:y|ies)|Python's lock|whole numbers?|made anew|hand(?:s|ed|ing)? over|afar"
)


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def code_blocks(document: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text_of(document), re.M | re.S)


def prose_of(document: str) -> str:
    return re.sub(r"^```.*?^```", "", text_of(document), flags=re.M | re.S)


def run_code(document: str) -> None:
    names: dict[str, object] = {"__name__": "documentation"}
    for number, block in enumerate(code_blocks(document)):
        exec(compile(block, f"{document}, block {number}", "exec"), names)


@pytest.fixture
def beside_frameworks(monkeypatch):
    """What docs/integrations.md needs: a torchvision that can be imported, and what torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What these libraries warn of is not ours to mend.
        importlib.import_module("light_torchvision")
        yield


@pytest.mark.parametrize(
    "document", [name for name in DOCUMENTS if code_blocks(name) and name != "docs/integrations.md"]
)
def test_the_code_of_a_document_runs_from_top_to_bottom(document, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if any("torchvision" in block for block in code_blocks(document)):
        importlib.import_module("light_torchvision")
    run_code(document)
    assert PRINTED.get(document, "") in capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_code_that_is_run_starts_more_workers_than_a_small_machine_has_cores(document):
    workers = [int(n) for code in code_blocks(document) for n in re.findall(r"num_workers=(\d+)", code)]
    assert max(workers, default=0) <= 2


def test_the_code_of_the_integrations_runs(tmp_path, monkeypatch, beside_frameworks):
    monkeypatch.chdir(tmp_path)
    run_code("docs/integrations.md")


def test_the_readme_can_be_run_twice_in_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        run_code("README.md")


@pytest.mark.parametrize("document", PAGES)
def test_no_code_is_shown_without_being_run(document):
    kinds = re.findall(r"^```([^\n]*)\n.*?^```", text_of(document), re.M | re.S)
    assert {kind.split(" ")[0] for kind in kinds} <= {*SHOWN, "python"}


def test_the_examples_in_docstrings_hold():
    results = {name: doctest.testmod(importlib.import_module(name)) for name in ["rekindle", *WITH_EXAMPLES]}
    assert [name for name, result in results.items() if result.failed] == []
    assert [name for name in WITH_EXAMPLES if not results[name].attempted] == []
    assert len(WITH_EXAMPLES) >= 4


# Links, names and words.


def anchors_of(path: Path) -> set[str]:
    """The anchors of a document's headings, as code hosts and the site make them."""
    headings = re.findall(r"^#+ (.*)$", prose_of(str(path.relative_to(ROOT))), re.M)
    plain = (re.sub(r"[`*]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", PAGES)
def test_every_link_of_a_document_leads_somewhere(document):
    home = (ROOT / document).parent
    for link in re.findall(r"\]\((?!https?:)([^)\s]*)\)", prose_of(document)):
        file, _, anchor = link.partition("#")
        if file.startswith("reference/"):  # Written when the site is built, which checks the link.
            continue
        target = (home / file).resolve() if file else ROOT / document
        assert target.exists(), link
        assert not target.is_relative_to(ROOT / "src"), f"{link}: the API reference is what documents link to"
        assert not anchor or anchor in anchors_of(target), link


def test_the_links_of_the_documents_are_found():
    links = [link for name in DOCUMENTS for link in re.findall(r"\]\(([^)\s]*)\)", prose_of(name))]
    assert len(links) > 50
    assert any("#" in link for link in links)


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/how-it-works.md", "docs/design-decisions.md"])
def test_a_page_about_the_code_names_files_that_exist(document):
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text_of(document)))
    source = ROOT / "src" / "rekindle"
    known = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    known |= {path.rpartition("/")[2] for path in known}
    known |= {f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py")}
    assert named
    assert named - known == set()


@pytest.mark.parametrize("document", [*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_documents_speak_the_words_of_the_field(document):
    assert re.findall(PRIVATE_WORDS, text_of(document), re.I) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_tests_and_benchmarks_that_a_document_names_exist(document):
    text = prose_of(document)
    for path in re.findall(r"`((?:tests|benchmarks)/\w+\.py)`", text):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`python -m benchmarks (\w+)", text):
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), name


# Numbers.


def kept(benchmark: str) -> dict[str, dict[str, float]]:
    """By the title of each comparison, the ratio of each contender, and the median of the first."""
    answer = json.loads((ROOT / "benchmarks" / "results" / f"{benchmark}.json").read_text(encoding="utf-8"))
    return {
        comparison["title"]: {
            row["contender"]: row["median"] if row["ratio"] is None else row["ratio"]
            for row in comparison["rows"]
        }
        for comparison in answer["comparisons"]
    }


def value(benchmark: str, title: str, contender: str) -> float:
    """What the first comparison with this in its title found of a contender."""
    found = [rows for name, rows in kept(benchmark).items() if title in name and contender in rows]
    return found[0][contender]


def milliseconds(title: str, contender: str) -> float:
    """The median of what `first_batch` measured of a contender."""
    answer = json.loads((ROOT / "benchmarks" / "results" / "first_batch.json").read_text(encoding="utf-8"))
    (rows,) = (one["rows"] for one in answer["comparisons"] if one["title"] == title)
    (median,) = (row["median"] for row in rows if row["contender"] == contender)
    return 1000 * median


def test_the_claimed_gap_between_epochs_is_the_one_that_was_kept():
    kept_workers, new_workers = (f"gap between epochs; persistent_workers={kept}" for kept in (True, False))
    torch, persistent = milliseconds(new_workers, "torch"), milliseconds(kept_workers, "torch")
    ours = milliseconds(new_workers, "rekindle")
    readme = re.sub(r"\s+", " ", text_of("README.md"))
    assert f"shrinks from {torch:.0f} ms to {ours:.1f} ms" in readme
    said = f"{ours:.1f} ms; torch's is {torch:.0f} ms, or {persistent:.0f} ms with persistent workers"
    assert said in text_of("docs/performance.md")


def test_whatever_the_readme_says_was_measured_names_its_test_or_benchmark():
    rows = [line.split(" | ") for line in text_of("README.md").splitlines() if line.startswith("| ")]
    (measured,) = {row.index("measured") for row in rows if "measured" in row}
    claims = [row[measured] for row in rows if "measured" not in row]
    assert len(claims) >= 12
    for claim in claims:
        named = re.findall(r"`([\w/.]+)`", claim)
        files = [name if name.startswith("tests/") else f"benchmarks/{name}.py" for name in named]
        assert any((ROOT / file).is_file() for file in files), claim


PAGE = "docs/performance.md"
# Document, what it says with {} for the number, the number's format, and where it was measured.
CLAIMS = [
    ("README.md", "unchanged torchvision dataset is read {}×", ".1f", ("pil_pipeline", "", "rekindle")),
    ("README.md", "small arrays {}×", ".1f", ("small_arrays", "as they are", "rekindle")),
    ("README.md", "| {}× torch, 2.9× DALI", ".1f", ("peers", "against torch", "rekindle")),
    ("README.md", "{}× DALI on the CPU", ".1f", ("peers", "against DALI", "rekindle")),
    ("README.md", "| {}× torch at 96 %", ".1f", ("reuse", "", "refurbished")),
    ("README.md", "reading alone {}× h5py", ".0f", ("packed", "HDF5 that h5py wrote; copy", "rekindle")),
    ("README.md", "{}× webdataset", ".1f", ("packed", "4 tar shards", "rekindle")),
    ("docs/reuse.md", "came {}× as fast as with torch", ".1f", ("reuse", "", "unchanged, refurbished")),
    ("docs/reuse.md", "and {}× as fast with [native", ".1f", ("reuse", "", "refurbished")),
    (PAGE, "2 workers | `pil_pipeline` | {}×", ".2f", ("pil_pipeline", "", "rekindle")),
    (PAGE, "| `reuse` | {}× (10.6", ".1f", ("reuse", "", "refurbished")),
    (PAGE, "| `reuse` | {}× (2.0", ".1f", ("reuse", "", "unchanged, refurbished")),
    (PAGE, "| `balance` | {} (", ".2f", ("balance", "CPU time", "cost")),
    (PAGE, "| `first_batch` | {} of", ".2f", ("first_batch", "first batch", "rekindle")),
    (PAGE, "| `memory`, one run | {} ·", ".2f", ("memory", "strings", "rekindle")),
    (PAGE, "· {}; torch's loader", ".2f", ("memory", "dicts", "rekindle")),
    (PAGE, "| `overhead` | {} µs", ".0f", ("overhead", "JPEG", "rekindle")),
    (PAGE, "{}× (22", ".0f", ("peers", "in memory", "rekindle")),
    (PAGE, "RandAugment(2, 9) | `peers` | {}×", ".1f", ("peers", "RandAugment(2, 9), flip", "rekindle")),
    (PAGE, "ColorJitter(.4, .4, .4) | `peers` | {}×", ".1f", ("peers", "ColorJitter", "rekindle")),
    (PAGE, "{}× (70–74) as views", ".0f", ("packed", "HDF5 that h5py wrote; view", "rekindle")),
    (PAGE, "`small_arrays` | {}× (2.6", ".1f", ("small_arrays", "flipped at random", "rekindle")),
    (PAGE, "| {}× · 7.7× · 28×", ".1f", ("tensor_dataset", "batch 1,", "rekindle")),
    (PAGE, "· {}× · 28×", ".1f", ("tensor_dataset", "batch 32,", "rekindle")),
    (PAGE, "· {}× |", ".0f", ("tensor_dataset", "batch 256,", "rekindle")),
    (PAGE, "`counters_cost` | {} % of", ".1f", ("counters_cost", "small arrays", "counters")),
    (PAGE, "(`store`): {} of its rate", ".2f", ("store", "memory of their own", "get")),
    (PAGE, "takes {} of the memory of torch's with 4", ".2f", ("memory", "4 workers", "rekindle")),
    (PAGE, "with 4 and {} with 16", ".2f", ("memory", "16 workers", "rekindle")),
]  # fmt: skip


@pytest.mark.parametrize(("document", "claim", "form", "measured"), CLAIMS)
def test_a_claimed_number_is_the_one_that_was_kept(document, claim, form, measured):
    said = claim.format(format(value(*measured), form))
    assert said in re.sub(r"\s+", " ", text_of(document))


def test_the_picture_of_the_gain_shows_the_numbers_that_were_kept():
    plot_gain, chart = (importlib.import_module(f"benchmarks.{name}") for name in ("plot_gain", "chart"))
    rows = {row["contender"]: row for row in chart.comparisons("reuse")[0]["rows"]}
    assert text_of("docs/gain.svg") == plot_gain.picture(rows), "run python -m benchmarks.plot_gain"
    described = re.search(r"!\[(.*?)\]\(docs/gain.svg\)", text_of("README.md"))
    assert described is not None
    for row in rows.values():
        assert f"{row['median']:,.0f}" in described[1]
