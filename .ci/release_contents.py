"""Checks that an sdist and a wheel hold what a user needs, and nothing that lay about when they were built.

python .ci/release_contents.py rekindle-1.2.3.tar.gz rekindle-1.2.3-py3-none-any.whl
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

# Files at the top of an sdist; below folders, every file is of one of the endings.
FILES = {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"}
FOLDERS = {"src"}
ENDINGS = {".py", ".pyi", ".typed"}
NEEDED = {"rekindle/__init__.py", "rekindle/__init__.pyi", "rekindle/__main__.py", "rekindle/py.typed"}


def unwanted_in_sdist(path: Path) -> list[str]:
    """What an sdist holds and should not, and what it lacks."""
    with tarfile.open(path) as archive:
        names = [
            PurePosixPath(name).relative_to(path.name.removesuffix(".tar.gz")) for name in archive.getnames()
        ]
    found = {str(name) for name in names}
    wrong = [
        str(name)
        for name in names
        if (len(name.parts) == 1 and str(name) not in FILES)
        or (len(name.parts) > 1 and (name.parts[0] not in FOLDERS or name.suffix not in ENDINGS))
    ]
    needed = (FILES - {".gitignore"}) | {f"src/{name}" for name in NEEDED}
    return wrong + [f"missing: {name}" for name in sorted(needed - found)]


def unwanted_in_wheel(path: Path) -> list[str]:
    """What a wheel holds and should not, and what it lacks."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    metadata = "-".join(path.name.split("-")[:2]) + ".dist-info/"
    wrong = [
        name
        for name in names
        if not name.startswith(metadata)
        and not (name.startswith("rekindle/") and PurePosixPath(name).suffix in ENDINGS)
    ]
    needed = NEEDED | {f"{metadata}licenses/LICENSE", f"{metadata}entry_points.txt"}
    return wrong + [f"missing: {name}" for name in sorted(needed - set(names))]


def main() -> int:
    """The exit status: 0 if both files are as they should be."""
    sdist, wheel = map(Path, sys.argv[1:])
    wrong = [f"{sdist.name}: {name}" for name in unwanted_in_sdist(sdist)]
    wrong += [f"{wheel.name}: {name}" for name in unwanted_in_wheel(wheel)]
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
