"""Where the samples of tar files are: members side by side whose names differ only in the ending.

WebDataset's convention: `key.jpg` is the image, `key.cls` its label, `key.json` may hold one. Nothing is
unpacked and no name is used as a path; links, folders and devices are passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteFile
from rekindle.fetch.labels import numbered
from rekindle.fetch.listing import Names
from rekindle.fetch.record_index import MOST_BYTES, NO_LABEL, RecordIndex, make_rows

BLOCK = 512
CLASSES = "REKINDLE.classes"  # a record of the archive's own header: names of the classes, as JSON
# Endings of images, those first that are taken if there are several with one key.
IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "pgm", "tif", "tiff", "gif")
_MOST_HEADER = 16 << 20  # bytes of a long name or of extended headers
_MOST_LABEL = 1 << 20
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_IN_JSON = ("label", "cls", "class", "target")


@dataclass(frozen=True)
class Member:
    """A regular file within a tar."""

    name: str
    offset: int
    size: int
    headers: Mapping[str, str]  # of the whole archive


def index_tar(
    files: Sequence[ByteFile], settings: Mapping[str, Any], told: Callable[[int], None]
) -> RecordIndex:
    """The samples of tar files. Settings: `images`, the ending of images; `labels`, that of labels."""
    wanted = settings.get("images")
    endings = tuple(ending.lower().lstrip(".") for ending in ([wanted] if wanted else IMAGES))
    label_ending = settings.get("labels")
    found: list[tuple[int, int, int]] = []
    keys: list[str] = []
    labels: list[int | str | None] = []
    classes: list[str] | None = None
    done = 0
    for number, file in enumerate(files):
        for key, parts, headers in _samples(file):
            told(done + next(iter(parts.values())).offset)
            classes = classes or _classes(file, headers)
            image = _image(parts, endings)
            if image is None:
                continue
            found.append((number, image.offset, image.size))
            keys.append(key)
            labels.append(_label(file, parts, label_ending))
        done += file.size
    if not found:
        raise FormatError(
            f"{files[0].name!r}: no member's name ends in {', '.join(endings)}. Name the ending of images by "
            "images=."
        )
    numbers, own_classes = _numbers(files[0].name, keys, labels, has_classes=classes != [])
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    rows = make_rows(table[:, 1], table[:, 2], numbers, table[:, 0])
    return RecordIndex(
        "tar", rows, names=Names.of([key.encode() for key in keys]), classes=classes or own_classes
    )


def _image(parts: Mapping[str, Member], endings: Sequence[str]) -> Member | None:
    """The image of a sample: `key.jpg`, or only if there is none such, `key.left.jpg`."""
    for ending in endings:
        if ending in parts:
            return parts[ending]
    return next((part for ending, part in parts.items() if ending.rpartition(".")[2] in endings), None)


def _samples(
    file: ByteFile,
) -> Iterator[tuple[str, dict[str, Member], Mapping[str, str]]]:
    """Members side by side with one key, by their endings."""
    key: str | None = None
    parts: dict[str, Member] = {}
    headers: Mapping[str, str] = {}
    for member in members(file):
        name = _NAME.fullmatch(member.name)
        if name is None:
            continue
        this, ending = name[1], name[2].lower()
        if this != key:
            if key is not None:
                yield key, parts, headers
            key, parts = this, {}
        if ending in parts:
            raise FormatError(
                f"{file.name!r} at byte {member.offset}: two members side by side are {member.name!r}."
            )
        parts[ending], headers = member, member.headers
    if key is not None:
        yield key, parts, headers


def _label(file: ByteFile, parts: Mapping[str, Member], ending: str | None) -> int | str | None:
    for candidate in [ending.lower().lstrip(".")] if ending else ["cls", "json"]:
        member = parts.get(candidate)
        if member is None:
            continue
        if member.size > _MOST_LABEL:
            raise FormatError(f"{file.name!r} at byte {member.offset}: a label of {member.size} bytes.")
        try:
            text = bytes(file.read(member.offset, member.size)).decode()
            value = json.loads(text) if candidate.endswith("json") else text.strip()
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"{file.name!r} at byte {member.offset}: {member.name!r} is no label: {error}"
            ) from error
        if isinstance(value, dict):
            value = next((value[name] for name in _IN_JSON if name in value), None)
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
            value = int(value)
        if isinstance(value, str) or (type(value) is int and -(2**63) <= value < 2**63):
            return value
        if ending or candidate == "cls":
            raise FormatError(
                f"{file.name!r} at byte {member.offset}: {member.name!r} holds no label, but {value!r:.80}."
            )
    return None


def _numbers(
    where: str, keys: Sequence[str], labels: Sequence[Any], *, has_classes: bool
) -> tuple[Any, list[str] | None]:
    """Numbers of classes, and their names if they have some.

    Where there are no labels, folders are classes, unless the archive says that it has none.
    """
    without = sum(label is None for label in labels)
    if 0 < without < len(labels):
        first = next(key for key, label in zip(keys, labels, strict=True) if label is None)
        raise FormatError(
            f"{where!r}: {without:,} of {len(labels):,} samples have no label, the first is {first!r}."
        )
    if without:
        folders = [key.rpartition("/")[0].rpartition("/")[2] for key in keys]
        if not has_classes or not all(folders) or len(set(folders)) < 2:
            return NO_LABEL, None
        labels = folders
    elif all(isinstance(label, int) for label in labels):
        return np.array(labels, dtype=np.int64), None
    classes, numbers = numbered([str(label) for label in labels], where)
    return numbers, classes


def _classes(file: ByteFile, headers: Mapping[str, str]) -> list[str] | None:
    try:
        classes = json.loads(headers.get(CLASSES, "null"))
    except (ValueError, RecursionError):
        classes = ()
    if classes is not None and not (isinstance(classes, list) and all(isinstance(c, str) for c in classes)):
        raise FormatError(f"{file.name!r} at byte 0: its names of classes are no list of names.")
    return classes


def members(file: ByteFile) -> Iterator[Member]:
    """The regular files within a tar, in order; FormatError if it is damaged or does not end as tars do."""
    place = 0
    everywhere: dict[str, str] = {}
    this: dict[str, str] = {}
    while True:
        if place + BLOCK > file.size:
            raise FormatError(f"{file.name!r} at byte {place}: the tar ends early. It is cut off.")
        header = bytes(file.read(place, BLOCK))
        if not any(header):
            return
        name, size, kind = _header(file, header, place)
        start = place + BLOCK
        place = start + -(-size // BLOCK) * BLOCK
        if kind in (b"x", b"g", b"L", b"K"):
            if size > _MOST_HEADER:
                raise FormatError(f"{file.name!r} at byte {start}: a name or header of {size} bytes.")
            content = bytes(file.read(start, size))
            if kind == b"x":
                this |= _pax(file, content, start)
            elif kind == b"g":
                everywhere |= _pax(file, content, start)
            elif kind == b"L":
                this["path"] = content.rstrip(b"\0").decode("utf-8", errors="replace")
            continue
        if "size" in this:
            size = _whole(file, this["size"].encode(), start, 10)
            place = start + -(-size // BLOCK) * BLOCK
        if start + size > file.size or size > MOST_BYTES:
            raise FormatError(
                f"{file.name!r} at byte {start}: a member of {size} bytes, but the file has {file.size}. "
                "It is damaged or cut off."
            )
        if kind in (b"0", b"\0", b"7") and not any(key.startswith("GNU.sparse") for key in this):
            yield Member(this.get("path", name), start, size, everywhere)
        this = {}


def _header(file: ByteFile, header: bytes, place: int) -> tuple[str, int, bytes]:
    """Name, size and type of a member."""
    told = _whole(file, header[148:156], place + 148)
    plain = sum(header[:148]) + 8 * 32 + sum(header[156:])
    if told != plain:
        raise FormatError(f"{file.name!r} at byte {place}: a header's checksum is wrong. The tar is damaged.")
    if header[124] & 0x80:
        size = int.from_bytes(header[124:136], "big") & ((1 << 95) - 1)
    else:
        size = _whole(file, header[124:136], place + 124)
    kind = header[156:157]
    if kind in (b"1", b"2", b"3", b"4", b"5", b"6"):
        size = 0
    if size > file.size:
        raise FormatError(f"{file.name!r} at byte {place}: a member of {size} bytes does not fit the file.")
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return name.decode("utf-8", errors="replace"), size, kind


def _whole(file: ByteFile, field: bytes, place: int, base: int = 8) -> int:
    text = field.strip(b"\0 ")
    try:
        value = int(text or b"0", base)
    except ValueError:
        value = -1
    if value < 0:
        raise FormatError(f"{file.name!r} at byte {place}: {field!r} is no number. The tar is damaged.")
    return value


def _pax(file: ByteFile, content: bytes, place: int) -> dict[str, str]:
    """The records of an extended header: `length key=value` and a line end each."""
    found, at = {}, 0
    while at < len(content) and content[at]:
        length, separator, _ = content[at : at + 20].partition(b" ")
        if not separator or not length.isdigit():
            raise FormatError(f"{file.name!r} at byte {place + at}: a damaged extended header.")
        end = at + int(length)
        key, equals, value = content[at + len(length) + 1 : end - 1].partition(b"=")
        if end > len(content) or end <= at or content[end - 1 : end] != b"\n" or not equals:
            raise FormatError(f"{file.name!r} at byte {place + at}: a damaged extended header.")
        found[key.decode("utf-8", errors="replace")] = value.decode("utf-8", errors="replace")
        at = end
    return found
