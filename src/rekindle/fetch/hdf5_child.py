"""What is in an HDF5 file and where: a program of its own, run by its path, with limits on memory.

HDF5's library trusts its files: damaged ones can crash it or keep it busy for ever. So it runs here, in a
process that may die, and only ever tells where bytes are. Reads a request a line (JSON), writes arrays to the
file that the request names and an answer a line. Imports nothing of the package, to start quickly.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
from typing import Any

import numpy as np

SOME_MEMORY, MEMORY_A_BYTE, MOST_MEMORY = 256 << 20, 64, 4 << 30  # a byte of the file
READY = b"ready\n"
MOST_SHOWN = 40
IMAGE_NAMES = ("images", "image", "data", "x", "img", "imgs", "jpeg", "jpg", "encoded", "features")
LABEL_NAMES = ("labels", "label", "targets", "target", "y", "cls", "class", "classes")
KEY_NAMES = ("keys", "key", "filenames", "filename", "paths", "names")
MOST_AXES = 8
MORE_CHUNKS = 1_000_000  # than the file has bytes: most of them would never have been written


class Refused(Exception):  # noqa: N818 - reads as what happened
    """What the file holds cannot be read, in words for the user."""


def main() -> None:
    """Say when all is imported, then answer requests until there are no more."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import h5py

    h5py._errors.silence_errors()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # What files make it say has no limit.
    os.write(sys.stdout.fileno(), READY)
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        _allow(request["seconds"], request["bytes"])
        try:
            answer, arrays = _answer(h5py, request)
            np.savez(request["out"], **arrays)
        except Refused as error:
            answer = {"refused": str(error)}
        except Exception as error:  # The library and h5py raise what they like on damaged files.
            answer = {"damaged": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), flush=True)


def _allow(seconds: float, nbytes: int) -> None:
    """Set what this process may take beyond what it has: seconds of work, and memory by the file's size."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + seconds) + 1)
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, min(MOST_MEMORY, mapped + SOME_MEMORY + MEMORY_A_BYTE * nbytes))


def _limit(what: int, wanted: int) -> None:
    _, most = resource.getrlimit(what)
    resource.setrlimit(what, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _answer(h5py: Any, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    with _opened(h5py, request) as file:
        found = _data_sets(h5py, file)
        base = int(file.id.get_create_plist().get_userblock())
        images, group = _choose_images(h5py, found, request.get("images"))
        if images is None:
            answer, arrays = _samples(h5py, file, found, group)
        else:
            labels = _choose_labels(h5py, found, request.get("labels"), images)
            described, arrays = _described(h5py, found[images], "images")
            answer = {"images": {"name": images, **described}}
            if labels is not None:
                described, more = _described(h5py, found[labels], "labels")
                answer["labels"] = {"name": labels, **described}
                answer["classes"] = _classes(found[labels])
                arrays |= more
            keys = _choose_keys(h5py, found, images, labels)
            if keys is not None:
                with contextlib.suppress(Refused):  # Samples can be read without names.
                    described, more = _described(h5py, found[keys], "keys")
                    answer["keys"] = {"name": keys, **described}
                    arrays |= more
        answer["base"] = base
        return answer, arrays


def _opened(h5py: Any, request: dict[str, Any]) -> Any:
    if request["size"] is not None:
        return h5py.File(_ThroughParent(request["size"]), "r")
    return h5py.File(request["path"], "r", locking=False)


class _ThroughParent(io.RawIOBase):
    """A remote file: the other process is asked for each range, and sends its bytes."""

    def __init__(self, size: int) -> None:
        self._size, self._place = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def readinto(self, into: Any) -> int:
        length = max(0, min(len(into), self._size - self._place))
        if length:
            print(json.dumps({"read": [self._place, length]}), flush=True)
            into[:length] = sys.stdin.buffer.read(length)
        self._place += length
        return length


def _data_sets(h5py: Any, file: Any) -> dict[str, Any]:
    """All data sets by name; links to elsewhere are not followed."""
    found: dict[str, Any] = {}

    def visit(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Dataset):
            found[name] = thing

    file.visititems(visit)
    return found


def _kind(h5py: Any, data: Any) -> str:
    """`vlen`: bytes of any length; `fixed`: bytes of one length; `numbers`; or `other`."""
    kind = data.id.get_type()
    if isinstance(kind, h5py.h5t.TypeVlenID):
        base = kind.get_super()
        return "vlen" if isinstance(base, h5py.h5t.TypeIntegerID) and base.get_size() == 1 else "other"
    if isinstance(kind, h5py.h5t.TypeStringID):
        return "vlen" if kind.is_variable_str() else "fixed"
    if isinstance(kind, h5py.h5t.TypeOpaqueID):
        return "fixed"
    if isinstance(kind, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID | h5py.h5t.TypeEnumID):
        return "numbers" if data.dtype.kind in "biuf" else "other"
    return "other"


def _could_be_images(h5py: Any, data: Any) -> bool:
    kind, axes = _kind(h5py, data), len(data.shape or ())
    return (kind in ("vlen", "fixed") and axes == 1) or (
        kind == "numbers" and data.dtype == np.uint8 and axes in (3, 4)
    )


def _could_be_sample(h5py: Any, data: Any) -> bool:
    kind, axes = _kind(h5py, data), len(data.shape or ())
    if data.shape is None:
        return False
    return (kind == "fixed" and axes == 0) or (
        kind == "numbers" and data.dtype == np.uint8 and axes in (1, 2, 3)
    )


def _listed(found: dict[str, Any]) -> str:
    lines = [f"{name!r} ({data.dtype}, {data.shape})" for name, data in list(found.items())[:MOST_SHOWN]]
    more = f" and {len(found) - MOST_SHOWN:,} more" if len(found) > MOST_SHOWN else ""
    return f"In the file are: {', '.join(lines) or 'no data sets'}{more}."


def _group(name: str) -> str:
    return name.rpartition("/")[0]


def _last(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _choose_images(h5py: Any, found: dict[str, Any], wanted: str | None) -> tuple[str | None, str]:
    """The data set of all images, or None and the group below which each data set is a sample."""
    if wanted is not None:
        name = wanted.strip("/")
        if name in found:
            numbers = _kind(h5py, found[name]) == "numbers" and len(found[name].shape or ()) > 1
            if not numbers and not _could_be_images(h5py, found[name]):
                raise Refused(f"images={wanted!r} is no data set of images. {_listed(found)}")
            return name, ""
        if any(one.startswith(f"{name}/") or not name for one in found):
            return None, f"{name}/" if name else ""
        raise Refused(f"there is no data set or group {wanted!r}. {_listed(found)}")
    candidates = {name: data for name, data in found.items() if _could_be_images(h5py, data)}
    named = [name for wish in IMAGE_NAMES for name in candidates if _last(name) == wish]
    if len(named) == 1 or (named and _last(named[0]) != _last(named[1])):
        return named[0], ""
    samples = [name for name, data in found.items() if _could_be_sample(h5py, data)]
    each_a_sample = len(samples) > 1 and not any(
        len(data.shape) == 4 or _kind(h5py, data) == "vlen" for data in candidates.values()
    )
    if each_a_sample:
        return None, ""
    images = [name for name in candidates if _last(name) not in LABEL_NAMES]
    if len(images) == 1:
        return images[0], ""
    raise Refused(f"cannot tell which data set holds the images: name it by images=. {_listed(found)}")


def _choose_labels(h5py: Any, found: dict[str, Any], wanted: str | None, images: str) -> str | None:
    count = found[images].shape[0]
    fitting = [
        name
        for name, data in found.items()
        if name != images
        and data.shape == (count,)
        and (
            _kind(h5py, data) in ("vlen", "fixed")
            or (_kind(h5py, data) == "numbers" and data.dtype.kind in "iu")
        )
    ]
    if wanted is not None:
        if wanted.strip("/") in fitting:
            return wanted.strip("/")
        raise Refused(f"labels={wanted!r} is no data set of {count} whole numbers or texts. {_listed(found)}")
    around, elsewhere = _by_nearness(found, fitting, images)
    numbers: list[str] = []  # of the nearest group that has some: one of several cannot be told
    for groups in (around, [elsewhere]):
        named = [name for near in groups for wish in LABEL_NAMES for name in near if _last(name) == wish]
        if named:
            return named[0]
        for near in groups:
            numbers = numbers or [name for name in near if found[name].dtype.kind in "iu"]
        if len(numbers) == 1:
            return numbers[0]
    return None


def _choose_keys(h5py: Any, found: dict[str, Any], images: str, labels: str | None) -> str | None:
    """A data set of texts, one for each image, whose name says that they are names."""
    fitting = [
        name
        for name, data in found.items()
        if name not in (images, labels)
        and data.shape == found[images].shape[:1]
        and _kind(h5py, data) in ("vlen", "fixed")
    ]
    around, elsewhere = _by_nearness(found, fitting, images)
    named = [
        name for near in (*around, elsewhere) for wish in KEY_NAMES for name in near if _last(name) == wish
    ]
    return named[0] if named else None


def _by_nearness(found: dict[str, Any], names: list[str], images: str) -> tuple[list[list[str]], list[str]]:
    """What may belong to the images: a list for their own group and each around it; and those elsewhere.

    A group that has images of the same name is left out: beside `fold0/images` are not the labels of
    `fold1/images`.
    """
    group, _, last = images.rpartition("/")
    around = [group]
    while group:
        group = group.rpartition("/")[0]
        around.append(group)
    elsewhere = [
        name for name in names if _group(name) not in around and f"{_group(name)}/{last}" not in found
    ]
    return [[name for name in names if _group(name) == one] for one in around], elsewhere


def _described(h5py: Any, data: Any, prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """How a data set is stored, and its chunks (offset, length, mask; in order of their places) if any."""
    kind = _kind(h5py, data)
    properties = data.id.get_create_plist()
    if properties.get_external_count():
        raise Refused(f"{data.name!r} is stored in other files, which are not followed.")
    if len(data.shape) > MOST_AXES:
        raise Refused(f"{data.name!r} has {len(data.shape)} axes.")
    if kind == "vlen":
        dtype = ""
    else:
        dtype = data.dtype.str if kind == "numbers" else f"|V{data.id.get_type().get_size()}"
    described: dict[str, Any] = {
        "kind": kind,
        "dtype": dtype,
        "shape": list(map(int, data.shape)),
        "filters": [],
        "fill": 0,
    }
    layout = properties.get_layout()
    if layout == h5py.h5d.CONTIGUOUS:
        offset, size = data.id.get_offset(), data.id.get_storage_size()
        if offset is None and np.prod(data.shape):
            raise Refused(f"{data.name!r} was never written.")
        return {**described, "offset": int(offset or 0), "size": int(size)}, {}
    if layout != h5py.h5d.CHUNKED:
        name = {h5py.h5d.COMPACT: "compact", h5py.h5d.VIRTUAL: "virtual"}.get(layout, str(layout))
        raise Refused(f"{data.name!r} has the layout {name!r}: copy it to one that is contiguous or chunked.")
    if kind == "numbers":
        described["fill"] = data.fillvalue.item() if data.fillvalue is not None else 0
    for number in range(properties.get_nfilters()):
        described["filters"].append(_filter(h5py, data, properties.get_filter(number)))
    return {**described, "chunk": list(map(int, data.chunks))}, {prefix: _chunk_table(data)}


def _filter(h5py: Any, data: Any, told: Any) -> list[Any]:
    code, _, values, name = told
    known = {
        h5py.h5z.FILTER_DEFLATE: "gzip",
        h5py.h5z.FILTER_SHUFFLE: "shuffle",
        h5py.h5z.FILTER_FLETCHER32: "fletcher32",
        h5py.h5z.FILTER_LZF: "lzf",
    }
    if code not in known:
        shown = name.decode("utf-8", errors="replace") if isinstance(name, bytes) else name
        raise Refused(f"{data.name!r} is compressed with {shown!r} (filter {code}); gzip and lzf are known.")
    return [known[code], int(values[0]) if values else 0]


def _chunk_table(data: Any) -> Any:
    grid = [-(-whole // piece) for whole, piece in zip(data.shape, data.chunks, strict=True)]
    count = 1
    for length in grid:
        count *= int(length)
    if count > MORE_CHUNKS + data.file.id.get_filesize():
        raise Refused(f"{data.name!r} has {count:,} chunks, more than the file has bytes.")
    table = np.zeros((count, 3), dtype=np.int64)

    def visit(info: Any) -> None:
        number = 0
        for start, piece, length in zip(info.chunk_offset, data.chunks, grid, strict=True):
            place = start // piece
            if start % piece or place >= length:
                return
            number = number * length + place
        table[number] = info.byte_offset, info.size, info.filter_mask

    data.id.chunk_iter(visit)
    return table


def _classes(labels: Any) -> list[str] | None:
    names = labels.attrs.get("classes")
    if names is None:
        return None
    names = json.loads(names) if isinstance(names, str) else [_text(name) for name in names]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Refused(f"the attribute 'classes' of {labels.name!r} is no list of names.")
    return names


def _text(name: Any) -> str:
    return name.decode("utf-8", errors="replace") if isinstance(name, bytes) else str(name)


def _samples(
    h5py: Any, file: Any, found: dict[str, Any], group: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A data set a sample: where each is, its shape (or none, for bytes) and its label."""
    places, shapes, names, labels = [], [], [], []
    for name, data in found.items():
        if not name.startswith(group) or not _could_be_sample(h5py, data):
            continue
        if _last(name) in LABEL_NAMES:
            continue
        described, _ = _described(h5py, data, "")
        if "offset" not in described:
            raise Refused(f"{name!r}, a data set of one sample, is chunked. Copy it to a contiguous one.")
        places.append((described["offset"], described["size"]))
        shapes.append(described["shape"] if len(described["shape"]) > 1 else [])
        names.append(name)
        labels.append(_label_of(h5py, data, name, found))
    if not places:
        raise Refused(f"no data set below {group!r} is an image. {_listed(found)}")
    answer = {"shapes": shapes, "names": names, "labels_of": labels}
    return answer, {"places": np.array(places, dtype=np.int64)}


def _label_of(h5py: Any, data: Any, name: str, found: dict[str, Any]) -> int | str | None:
    """A sample's label: its attribute, a number beside it, or the name of its group."""
    for wish in LABEL_NAMES:
        label = data.attrs.get(wish)
        if label is None:
            parent = name.rpartition("/")[0]
            beside = found.get(f"{parent}/{wish}") if parent else None
            if beside is not None and beside.shape == () and beside.dtype.kind in "iu":
                label = beside[()]
        if isinstance(label, str | bytes):
            return _text(label)
        if label is not None and np.ndim(label) == 0 and np.asarray(label).dtype.kind in "iu":
            return int(label)
    parent = name.rpartition("/")[0]
    return _last(parent) or None


if __name__ == "__main__":
    main()
