"""Reports what is in an HDF5 file and where: a stand-alone program, with limits on memory and CPU time.

HDF5's library trusts its files: a corrupt one can crash it or keep it busy for ever. So it runs here, in a
process that may die, and only reports where bytes are. Reads a request a line (JSON), writes arrays to the
file that the request names, and answers with a line (JSON); `inspector_messages` has their types. Imports
nothing of the package when it runs, to start quickly. `inspector` starts it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import h5py
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from rekindle.fetch.packed.hdf5.chunk_table import chunk_table
    from rekindle.fetch.packed.hdf5.dataset_choice import (
        LABEL_NAMES,
        Datasets,
        UnsupportedError,
        choose_images,
        choose_keys,
        choose_labels,
        could_be_sample,
        group_of,
        kind_of,
        last_part,
        list_datasets,
    )
    from rekindle.fetch.packed.hdf5.inspector_messages import Answer, Hdf5DatasetInfo, Request
else:  # A program imports its neighbours without the package around them.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from chunk_table import chunk_table
    from dataset_choice import (
        LABEL_NAMES,
        Datasets,
        UnsupportedError,
        choose_images,
        choose_keys,
        choose_labels,
        could_be_sample,
        group_of,
        kind_of,
        last_part,
        list_datasets,
    )

    del sys.path[0]

BASE_MEMORY, MEMORY_PER_BYTE, MAX_MEMORY = 256 << 20, 64, 4 << 30  # bytes; per byte of the file
MAX_AXES = 8

Arrays = dict[str, NDArray[np.int64]]


def main() -> None:
    """Report that all is imported, then answer requests until there are no more."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    h5py._errors.silence_errors()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # Corrupt files cause endless messages.
    _import_the_rest()
    print(json.dumps({"ready": True}), flush=True)
    for line in iter(sys.stdin.buffer.readline, b""):
        request: Request = json.loads(line)
        _limit_resources(request["seconds"], request["size"])
        try:
            answer, arrays = _inspect(request)
            np.savez(request["out"], allow_pickle=False, **arrays)
        except UnsupportedError as error:
            answer = {"unsupported": str(error)}
        except Exception as error:  # On corrupt files, the library and h5py raise errors of any type.
            answer = {"corrupt": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), flush=True)


def _import_the_rest() -> None:
    """Inspect a small file: what Python imports when it is first used could not be opened later."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file["images"] = np.zeros((2, 2, 2, 3), np.uint8)
        file["labels"], file["keys"] = [b"a", b"b"], ["a", "b"]
        file["labels"].attrs["classes"] = '["a", "b"]'
        file["train/0"] = np.zeros((2, 2), np.uint8)
        file["train/0"].attrs["label"] = "ä"
    with h5py.File(content, "r") as file:
        found = _datasets(file)
        choose_keys(found, "images", choose_labels(found, None, "images"))
        _classes(found["labels"])
        _inspect_samples(found, "train/")
        with contextlib.suppress(UnsupportedError):
            choose_images(found, "other ä")


def _limit_resources(seconds: float, nbytes: int) -> None:
    """Limit the CPU time and memory that this process may use from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + seconds) + 1)
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, min(MAX_MEMORY, mapped + BASE_MEMORY + MEMORY_PER_BYTE * nbytes))


def _limit(what: int, wanted: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


@contextlib.contextmanager
def _no_other_files() -> Iterator[None]:
    """Nothing can be opened meanwhile: the library would follow names of other files, and load plug-ins."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)  # the lowest descriptor that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _inspect(request: Request) -> tuple[Answer, Arrays]:
    with _open(request) as file, _no_other_files():
        found = _datasets(file)
        images, group = choose_images(found, request["images"])
        if images is None:
            answer, arrays = _inspect_samples(found, group)
        else:
            answer, arrays = {}, {}
            answer["images"] = _inspect_dataset(found[images], "images", arrays)
            labels = choose_labels(found, request["labels"], images)
            if labels is not None:
                answer["labels"] = _inspect_dataset(found[labels], "labels", arrays)
                answer["classes"] = _classes(found[labels])
            keys = choose_keys(found, images, labels)
            if keys is not None:
                with contextlib.suppress(UnsupportedError):  # Samples can be read without their names.
                    answer["keys"] = _inspect_dataset(found[keys], "keys", arrays)
        answer["base"] = int(file.id.get_create_plist().get_userblock())
        return answer, arrays


def _open(request: Request) -> h5py.File:
    if request["path"] is None:
        return h5py.File(_RemoteFile(request["size"]), "r")
    return h5py.File(request["path"], "r", locking=False)


class _RemoteFile(io.RawIOBase):
    """A remote file: each range is requested from the other process, which sends its bytes."""

    def __init__(self, size: int) -> None:
        self._size, self._position = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, into: WriteableBuffer) -> int:
        view = memoryview(into).cast("B")
        length = max(0, min(len(view), self._size - self._position))
        if length:
            print(json.dumps({"read": [self._position, length]}), flush=True)
            view[:length] = sys.stdin.buffer.read(length)
        self._position += length
        return length


def _datasets(file: h5py.File) -> Datasets:
    """All datasets by name; links to other files are not followed."""
    found: Datasets = {}

    def visit(name: str, thing: object) -> None:
        if isinstance(thing, h5py.Dataset):
            found[name] = thing

    file.visititems(visit)
    return found


def _check_own(data: h5py.Dataset) -> None:
    """Raise UnsupportedError if a dataset's values are not in this file, but in others that it names."""
    properties = data.id.get_create_plist()
    if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count():
        raise UnsupportedError(
            f"{data.name!r} is stored in other files (external storage, or a virtual dataset), which are not "
            "followed. Copy it into this one."
        )


def _check_bits(data: h5py.Dataset) -> None:
    """Raise UnsupportedError if the library gives only some bits of each number that is stored."""
    kind = data.id.get_type()
    if isinstance(kind, h5py.h5t.TypeVlenID | h5py.h5t.TypeEnumID):
        kind = kind.get_super()
    if not isinstance(kind, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID):
        return
    bits = 8 * kind.get_size()
    if (kind.get_offset(), kind.get_precision()) != (0, bits):
        raise UnsupportedError(
            f"{data.name!r} stores numbers of {kind.get_precision()} bits in {bits}. Copy it to a dataset of "
            "a plain type."
        )


def _inspect_dataset(data: h5py.Dataset, key: str, arrays: Arrays) -> Hdf5DatasetInfo:
    """How a dataset is stored; adds its chunks (offset, length, mask, in order of position) to `arrays`."""
    kind = kind_of(data)
    _check_own(data)
    _check_bits(data)
    properties = data.id.get_create_plist()
    if len(data.shape) > MAX_AXES:
        raise UnsupportedError(f"{data.name!r} has {len(data.shape)} axes, at most {MAX_AXES} are supported.")
    dtype = {"vlen": "", "numbers": data.dtype.str}.get(kind, f"|V{data.id.get_type().get_size()}")
    name, shape = data.name.lstrip("/"), list(map(int, data.shape))
    info: Hdf5DatasetInfo = {
        "name": name,
        "kind": kind,
        "dtype": dtype,
        "shape": shape,
        "filters": [],
        "fill": 0,
    }
    layout = properties.get_layout()
    if layout == h5py.h5d.CONTIGUOUS:
        offset = data.id.get_offset()
        if offset is None and np.prod(data.shape):
            raise UnsupportedError(f"{data.name!r} was never written.")
        info["offset"], info["size"] = int(offset or 0), int(data.id.get_storage_size())
        return info
    if layout != h5py.h5d.CHUNKED:
        which = "compact" if layout == h5py.h5d.COMPACT else str(layout)
        raise UnsupportedError(
            f"{data.name!r} has the layout {which!r}: copy it to a contiguous or chunked one."
        )
    if kind == "numbers":
        info["fill"] = data.fillvalue.item() if data.fillvalue is not None else 0
    info["filters"] = [_filter(data, number) for number in range(properties.get_nfilters())]
    info["chunk"] = list(map(int, data.chunks))
    arrays[key] = chunk_table(data, info["fill"] if kind == "numbers" else None)
    return info


def _filter(data: h5py.Dataset, number: int) -> tuple[str, int]:
    """Name and first parameter of a filter that chunks go through."""
    code, _, values, name = data.id.get_create_plist().get_filter(number)
    known = {
        h5py.h5z.FILTER_DEFLATE: "gzip",
        h5py.h5z.FILTER_SHUFFLE: "shuffle",
        h5py.h5z.FILTER_FLETCHER32: "fletcher32",
        h5py.h5z.FILTER_LZF: "lzf",
    }
    if code not in known:
        raise UnsupportedError(
            f"{data.name!r} is compressed with {_text(name)!r} (filter {code}); gzip and lzf are supported."
        )
    return known[code], int(values[0]) if values else 0


def _classes(labels: h5py.Dataset) -> list[str] | None:
    names = labels.attrs.get("classes")
    if names is None:
        return None
    names = json.loads(names) if isinstance(names, str) else [_text(name) for name in names]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UnsupportedError(f"the attribute 'classes' of {labels.name!r} is not a list of names.")
    return names


def _text(name: object) -> str:
    return name.decode("utf-8", errors="replace") if isinstance(name, bytes) else str(name)


def _inspect_samples(found: Datasets, group: str) -> tuple[Answer, Arrays]:
    """A dataset a sample: where each is, its shape (empty for encoded images) and its label."""
    answer: Answer = {"names": [], "shapes": [], "sample_labels": []}
    ranges = []
    for name, data in found.items():
        if not name.startswith(group) or not could_be_sample(data) or last_part(name) in LABEL_NAMES:
            continue
        info = _inspect_dataset(data, "", {})
        if "offset" not in info:
            raise UnsupportedError(
                f"{name!r}, the dataset of one sample, is chunked. Copy it to a contiguous one."
            )
        ranges.append((info["offset"], info["size"]))
        answer["names"].append(name)
        answer["shapes"].append(info["shape"] if len(info["shape"]) > 1 else [])
        answer["sample_labels"].append(_sample_label(data, name, found))
    if not ranges:
        raise UnsupportedError(f"no dataset below {group!r} is an image. {list_datasets(found)}")
    return answer, {"ranges": np.array(ranges, dtype=np.int64)}


def _sample_label(data: h5py.Dataset, name: str, found: Datasets) -> int | str | None:
    """A sample's label: its attribute, an integer beside it, or the name of its group."""
    parent = group_of(name)
    for usual in LABEL_NAMES:
        label = data.attrs.get(usual)
        if label is None:
            beside = found.get(f"{parent}/{usual}") if parent else None
            if beside is not None and beside.shape == () and beside.dtype.kind in "iu":
                _check_own(beside)
                label = beside[()]
        if isinstance(label, str | bytes):
            return _text(label)
        if label is not None and np.ndim(label) == 0 and np.asarray(label).dtype.kind in "iu":
            return int(label)
    return last_part(parent) or None


if __name__ == "__main__":
    main()
