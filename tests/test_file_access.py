"""What writes, renames, locks or deletes files does so by `core/directory.py` and `core/atomic_file.py`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rekindle

ROOT = Path(rekindle.__file__).parent
# These own the calls: directories by descriptor, files that appear complete, memory files without a name.
OWNERS = {"core/directory.py", "core/atomic_file.py", "core/memfd.py"}
EXCEPTIONS = {
    # A stand-alone program that imports nothing of the package: it writes into the temporary directory,
    # private to the user, that `hdf5/inspector.py` has made.
    ("fetch/packed/hdf5/inspector_process.py", "numpy.savez"),
    # A file in memory, that it starts with.
    ("fetch/packed/hdf5/inspector_process.py", "h5py.File"),
    # Standard error of that program goes to /dev/null, and standard output of the command line, if its reader
    # is gone.
    ("fetch/packed/hdf5/inspector_process.py", "os.open"),
    ("tools/cli.py", "os.open"),
    # Locks a part of anonymous shared memory, which has no name.
    ("reuse/cache/shared_arrays.py", "fcntl.lockf"),
    # Libraries that write: to a descriptor of an `AtomicFile`, to the directory of an `AtomicFolder`.
    ("fetch/packed/hdf5/writer.py", "h5py.File"),
    ("fetch/packed/lmdb/writer.py", "lmdb.open"),
    # NumPy's archives, into files that `atomic_write` has opened.
    ("fetch/listing.py", "numpy.savez"),
    ("choose/importance/selection_via_proxy.py", "numpy.savez_compressed"),
}

_OS = {
    "chmod", "chown", "fchmod", "fchown", "lchmod", "lchown", "link", "makedirs", "mkdir", "mkfifo", "mknod",
    "remove", "removedirs", "rename", "renames", "replace", "rmdir", "symlink", "truncate", "unlink",
}  # fmt: skip
FORBIDDEN = {
    *(f"os.{name}" for name in _OS),
    *(f"shutil.{name}" for name in ("rmtree", "move", "copy", "copy2", "copyfile", "copytree", "chown")),
    *(f"numpy.{name}" for name in ("save", "savez", "savez_compressed", "savetxt")),
    *(f"fcntl.{name}" for name in ("flock", "lockf")),
    "lmdb.open", "torch.save", "io.FileIO",
}  # fmt: skip
MODULES = {"tempfile", "sqlite3", "shelve", "dbm"}  # whatever is called of these
# Methods of `Path`, whatever the object: no other class here has a method of such a name.
METHODS = {
    "write_text", "write_bytes", "mkdir", "rmdir", "unlink", "rename", "touch", "chmod", "lchmod",
    "symlink_to", "hardlink_to", "tofile",
}  # fmt: skip
READING = {"r", "rb", "rt", "br"}


def _imported(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: `import numpy as np`, `from os import replace as move`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """The full name of a function or module, as `os.replace`; None for what is no plain name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id if node.id == "open" else None)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, names)
        return None if base is None else f"{base}.{node.attr}"
    return None


def _mode(call: ast.Call, position: int) -> str | None:
    """The mode of an `open`: "r" if it has none, None if it cannot be told."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    given += call.args[position : position + 1]
    if not given:
        return "r"
    return str(given[0].value) if isinstance(given[0], ast.Constant) else None


def _opens_to_write(call: ast.Call, dotted: str | None, constants: dict[str, ast.expr]) -> bool:
    attribute = call.func.attr if isinstance(call.func, ast.Attribute) else None
    if dotted == "os.open":
        names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        given = [call, *(constants[name] for name in names & set(constants))]
        flags = {node.attr for one in given for node in ast.walk(one) if isinstance(node, ast.Attribute)}
        return "O_RDONLY" not in flags or bool(
            flags & {"O_CREAT", "O_TRUNC", "O_WRONLY", "O_RDWR", "O_APPEND"}
        )
    if dotted in ("open", "io.open", "codecs.open"):
        return _mode(call, 1) not in READING
    if dotted == "h5py.File":
        return _mode(call, 1) != "r"
    if dotted is None and attribute == "open":  # `Path.open`, and others' that take no mode.
        return _mode(call, 0) not in READING and bool(call.keywords) | bool(
            call.args and isinstance(call.args[0], ast.Constant)
        )
    return False


def file_access(source: str) -> list[tuple[int, str]]:
    """Line and name of each use of a function that writes, renames, locks or deletes files."""
    tree = ast.parse(source)
    names, found = _imported(tree), []
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        # Also where a function is only named: it may be called under another name.
        dotted = _dotted(node, names) if isinstance(node, ast.Name | ast.Attribute) else None
        if dotted in FORBIDDEN or (dotted and "." in dotted and dotted.split(".")[0] in MODULES):
            found.append((node.lineno, str(dotted)))
        if not isinstance(node, ast.Call):
            continue
        called = _dotted(node.func, names)
        if _opens_to_write(node, called, constants):
            found.append((node.lineno, called or "Path.open"))
        if isinstance(node.func, ast.Attribute) and called not in FORBIDDEN:
            method = node.func.attr
            is_path_replace = method == "replace" and len(node.args) == 1 and not node.keywords
            if (method in METHODS and called is None) or (is_path_replace and called is None):
                found.append((node.lineno, f"Path.{method}"))
        if called == "getattr" and isinstance(node.args[1], ast.Constant) and node.args[1].value in _OS:
            found.append((node.lineno, "getattr"))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.rename('a', 'b')",
        "import os as system\nsystem.replace('a', 'b')",
        "from os import replace as move\nmove('a', 'b')",
        "import os\nmove = os.unlink",
        "import shutil\nshutil.rmtree('a', ignore_errors=True)",
        "from shutil import rmtree\nlist(map(rmtree, []))",
        "open('a', 'w')",
        "open('a', mode='ab')",
        "open('a', mode)",
        "import io\nio.open('a', 'x')",
        "import os\nos.open('a', os.O_RDWR | os.O_CREAT)",
        "import os\nos.open('a', flags)",
        "import os\nFLAGS = os.O_RDONLY | os.O_CREAT\nos.open('a', FLAGS)",
        "from pathlib import Path\nPath('a').open('wb')",
        "from pathlib import Path\nPath('a').open(mode='r+')",
        "from pathlib import Path\nPath('a').write_text('')",
        "path.write_bytes(b'')",
        "(folder / 'a').mkdir(parents=True)",
        "(folder / 'a').unlink()",
        "path.replace(other)",
        "path.rename(other)",
        "import tempfile\ntempfile.mkdtemp()",
        "from tempfile import NamedTemporaryFile\nNamedTemporaryFile()",
        "import fcntl\nfcntl.flock(file, 2)",
        "import numpy as np\nnp.save('a', array)",
        "array.tofile('a')",
        "import h5py\nh5py.File('a', 'w')",
        "import lmdb\nlmdb.open('a')",
    ],
)
def test_a_call_that_changes_files_is_seen(source: str) -> None:
    assert file_access(source)


@pytest.mark.parametrize(
    "source",
    [
        "open('a')",
        "open('a', 'rb')",
        "import os\nos.open('a', os.O_RDONLY | os.O_CLOEXEC)",
        "'text'.replace('a', 'b')",
        "from dataclasses import replace\nreplace(thing, a=1)",
        "items.remove(3)",
        "from PIL import Image\nImage.open(data)",
        "path.open('rb')",
        "store.open(name)",
    ],
)
def test_a_call_that_only_reads_is_not(source: str) -> None:
    assert not file_access(source)


def test_nothing_else_writes_renames_locks_or_deletes_files() -> None:
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name not in OWNERS:
            found |= {(name, what) for _, what in file_access(path.read_text())}
    assert found - EXCEPTIONS == set()
    assert found >= EXCEPTIONS, "an exception that is not needed any more"


def test_whatever_is_compiled_checks_where_it_is_loaded_from() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        if path.name == "compiled_code.py":  # The one that compiles for all others checks every time.
            compiles = text.index("\ndef _compile(")
            first = text.index("\n    check_compiled_code()\n", compiles)
            assert compiles < first < text.index(" numba\n", compiles)
            assert text.index("numba.njit(") > first
        elif "numba.njit" in text:
            assert text.index("\ncheck_compiled_code()\n") < text.index("numba.njit("), path
