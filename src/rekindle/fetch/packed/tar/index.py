"""Indexes tar files: a sample is adjacent members whose names differ only in the extension.

WebDataset's convention: `key.jpg` is the image, `key.cls` its label, `key.json` may hold one. Nothing is
unpacked and no name is used as a path; links, folders and devices are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rekindle.core.json_input import parse_json
from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteReader, truncated
from rekindle.fetch.bytes_array import BytesArray
from rekindle.fetch.labels import number_classes
from rekindle.fetch.packed.record_index import (
    MAX_SAMPLE_BYTES,
    NO_LABEL,
    Column,
    IndexSettings,
    RecordIndex,
    make_rows,
)

BLOCK = 512
CLASSES = "REKINDLE.classes"  # a record of the global PAX header: the class names, as JSON
# Extensions of images; the first of them is taken if several members of a sample are images.
IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "pgm", "tif", "tiff", "gif")
_MAX_HEADER = 16 << 20  # bytes of a long name or of extended headers
_MAX_LABEL = 1 << 20
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_OF_ONE_MEMBER = {"path", "size"}  # keys of extended headers
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders
_JSON_KEYS = ("label", "cls", "class", "target")


@dataclass(frozen=True)
class Member:
    """A regular file within a tar."""

    name: str
    offset: int
    size: int
    headers: Mapping[str, str]  # global: of the whole archive


def index_tar(
    files: Sequence[ByteReader],
    settings: IndexSettings,
    report: Callable[[int], None],
    limits: Limits = DEFAULT_LIMITS,
) -> RecordIndex:
    """The samples of tar files. Settings: `images`, the extension of images; `labels`, that of labels."""
    wanted = settings.get("images")
    extensions = tuple(one.lower().lstrip(".") for one in ([wanted] if wanted else IMAGE_EXTENSIONS))
    label_extension = settings.get("labels")
    found: list[tuple[int, int, int]] = []
    keys: list[str] = []
    labels: list[int | str | None] = []
    classes: list[str] | None = None
    described: str | None = None
    done = 0
    for number, file in enumerate(files):
        for key, parts, headers in _samples(file):
            report(done + next(iter(parts.values())).offset)
            if not classes and headers.get(CLASSES) != described:  # Parsed once, not once for each sample.
                described = headers.get(CLASSES)
                classes = _classes(file, described)
            extension = _image(parts, extensions)
            if extension is None:
                continue
            found.append((number, parts[extension].offset, parts[extension].size))
            keys.append(key)
            labels.append(_label(file, parts, label_extension, extension))
        done += file.size
    if not found:
        raise FormatError(
            f"{files[0].name!r}: no member's name ends in {', '.join(extensions)}. Give the extension of the "
            "images: images=."
        )
    if label_extension and all(label is None for label in labels):
        raise FormatError(
            f"{files[0].name!r}: labels={label_extension!r}, but no sample has a member with that extension. "
            "Give the extension of the labels, or the path of a labels file (.csv, .tsv, .json)."
        )
    numbers, own_classes = _class_numbers(files[0].name, keys, labels, has_classes=classes != [])
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    rows = make_rows(table[:, 1], table[:, 2], numbers, table[:, 0])
    names = BytesArray.from_list([key.encode() for key in keys])
    return RecordIndex("tar", rows, names=names, classes=classes or own_classes)


def _image(parts: Mapping[str, Member], extensions: Sequence[str]) -> str | None:
    """The extension of a sample's image: that of `key.jpg`, or if there is none, of `key.left.jpg`."""
    for extension in extensions:
        if extension in parts:
            return extension
    return next((name for name in parts if name.rpartition(".")[2] in extensions), None)


def _samples(
    file: ByteReader,
) -> Iterator[tuple[str, dict[str, Member], Mapping[str, str]]]:
    """For each sample its key, its members by extension, and the global headers."""
    key: str | None = None
    parts: dict[str, Member] = {}
    headers: Mapping[str, str] = {}
    for member in members(file):
        name = _NAME.fullmatch(member.name)
        if name is None:
            continue
        this, extension = name[1], name[2].lower()
        if this != key:
            if key is not None:
                yield key, parts, headers
            key, parts = this, {}
        if extension in parts:
            raise FormatError(f"{file.name!r} at byte {member.offset}: a second member {member.name!r}.")
        parts[extension], headers = member, member.headers
    if key is not None:
        yield key, parts, headers


def _label(
    file: ByteReader, parts: Mapping[str, Member], extension: str | None, image: str
) -> int | str | None:
    """The label of a sample; that of `key.left.jpg` may be `key.left.cls`, as it is of `2024.05.jpg`."""
    before = image.rpartition(".")[0]
    beside = [f"{before}.cls", f"{before}.json"] if before else []
    for candidate in [extension.lower().lstrip(".")] if extension else ["cls", "json", *beside]:
        member = parts.get(candidate)
        if member is None:
            continue
        if member.size > _MAX_LABEL:
            raise FormatError(
                f"{file.name!r} at byte {member.offset}: a label has {member.size} bytes, at most "
                f"{_MAX_LABEL} are allowed."
            )
        try:
            text = bytes(file.read(member.offset, member.size)).decode()
            value: object = parse_json(text) if candidate.endswith("json") else text.strip()
        except ValueError as error:
            raise FormatError(
                f"{file.name!r} at byte {member.offset}: {member.name!r} is not a label: {error}"
            ) from error
        if isinstance(value, dict):
            value = next((value[name] for name in _JSON_KEYS if name in value), None)
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
            value = int(value)
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
            return value
        if extension or candidate.endswith("cls"):
            raise FormatError(
                f"{file.name!r} at byte {member.offset}: {member.name!r} has no label, but {value!r:.80}."
            )
    return None


def _class_numbers(
    where: str, keys: Sequence[str], labels: Sequence[int | str | None], *, has_classes: bool
) -> tuple[Column, list[str] | None]:
    """The class number of each sample, and class names if labels are names.

    Without labels, folders are classes, unless the archive has an empty list of classes.
    """
    unlabelled = sum(label is None for label in labels)
    if 0 < unlabelled < len(labels):
        first = next(key for key, label in zip(keys, labels, strict=True) if label is None)
        raise FormatError(
            f"{where!r}: {unlabelled:,} of {len(labels):,} samples have no label, the first is {first!r}."
        )
    if unlabelled:
        folders = [key.rpartition("/")[0].rpartition("/")[2] for key in keys]
        if not has_classes or not all(folders) or len(set(folders)) < 2:
            return NO_LABEL, None
        labels = folders
    elif all(isinstance(label, int) for label in labels):
        return np.array(labels, dtype=np.int64), None
    classes, numbers = number_classes([str(label) for label in labels], where)
    return numbers, classes


def _classes(file: ByteReader, described: str | None) -> list[str] | None:
    if described is None:
        return None
    try:
        classes = parse_json(described)
    except ValueError:
        classes = ()
    if classes is None:
        return None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise FormatError(f"{file.name!r} at byte 0: {CLASSES} is not a list of names.")
    return classes


def members(file: ByteReader) -> Iterator[Member]:
    """The regular files within a tar, in order; FormatError if it is corrupt or has no end marker."""
    offset = 0
    global_headers: dict[str, str] = {}
    headers: dict[str, str] = {}  # of the next member
    while True:
        if offset + BLOCK > file.size:
            raise FormatError(f"{file.name!r} at byte {offset}: the tar has no end marker: truncated.")
        header = bytes(file.read(offset, BLOCK))
        if not any(header):
            return
        name, size, kind = _header(file, header, offset)
        start = offset + BLOCK
        offset = start + -(-size // BLOCK) * BLOCK
        if kind in (b"x", b"X", b"g", b"L", b"K"):
            if size > _MAX_HEADER:
                raise FormatError(f"{file.name!r} at byte {start}: a header of {size} bytes: corrupt.")
            content = bytes(file.read(start, min(offset, file.size) - start))
            if any(content[size:]) and (kind not in (b"L", b"K") or b"\0" not in content[:size]):
                # Other readers go on to the end of the block.
                raise FormatError(f"{file.name!r} at byte {start + size}: a header that has no end: corrupt.")
            content, found = content[:size], {}
            if kind == b"L":
                found = {"path": content.split(b"\0", 1)[0].decode("utf-8", errors="replace")}
            elif kind != b"K":
                found = _pax(file, content, start)
            if _OF_ONE_MEMBER & found.keys() & (_OF_ONE_MEMBER if kind == b"g" else headers.keys()):
                # Other readers take the first, or the last: to them, this is another archive.
                raise FormatError(
                    f"{file.name!r} at byte {start}: a second name or size of a member, or one of all "
                    "members: corrupt."
                )
            if kind == b"g":
                global_headers |= found
            else:
                headers |= found
            continue
        if "size" in headers and kind not in _WITHOUT_CONTENT:
            size = _number(file, headers["size"].encode(), start, 10)
            offset = start + -(-size // BLOCK) * BLOCK
        if start + size > file.size or size > MAX_SAMPLE_BYTES:
            raise truncated(file, start, "a member", size)
        if kind in (b"0", b"\0", b"7") and not any(key.startswith("GNU.sparse") for key in headers):
            yield Member(headers.get("path", name), start, size, global_headers)
        headers = {}


def _header(file: ByteReader, header: bytes, offset: int) -> tuple[str, int, bytes]:
    """Name, size and type of a member."""
    if _number(file, header[148:156], offset + 148) != sum(header[:148]) + 8 * 32 + sum(header[156:]):
        raise FormatError(
            f"{file.name!r} at byte {offset}: wrong checksum of a header: corrupt. Make the tar again."
        )
    if header[124] & 0x80:
        size = int.from_bytes(header[124:136], "big") & ((1 << 95) - 1)
    else:
        size = _number(file, header[124:136], offset + 124)
    kind = header[156:157]
    name = header[:100].split(b"\0", 1)[0]
    if kind == b"\0" and name.endswith(b"/"):  # A folder, as it was written before there were types.
        if size:
            raise FormatError(f"{file.name!r} at byte {offset}: a folder of {size} bytes: corrupt.")
        kind = b"5"
    if kind in _WITHOUT_CONTENT:
        size = 0
    if size > file.size:
        raise truncated(file, offset, "a member", size)
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return name.decode("utf-8", errors="replace"), size, kind


def _number(file: ByteReader, field: bytes, offset: int, base: int = 8) -> int:
    text = field.strip(b"\0 ")
    try:
        value = int(text or b"0", base)
    except ValueError:
        value = -1
    if value < 0:
        raise FormatError(f"{file.name!r} at byte {offset}: {field!r} is not a number: the tar is corrupt.")
    return value


def _pax(file: ByteReader, content: bytes, offset: int) -> dict[str, str]:
    """The records of an extended header: `length key=value` and a newline each."""
    found, at = {}, 0
    while at < len(content) and content[at]:
        length, separator, _ = content[at : at + 20].partition(b" ")
        if not separator or not length.isdigit():
            raise FormatError(f"{file.name!r} at byte {offset + at}: a corrupt extended header.")
        end = at + int(length)
        key, equals, value = content[at + len(length) + 1 : end - 1].partition(b"=")
        if end > len(content) or end <= at or content[end - 1 : end] != b"\n" or not equals:
            raise FormatError(f"{file.name!r} at byte {offset + at}: a corrupt extended header.")
        found[key.decode("utf-8", errors="replace")] = value.decode("utf-8", errors="replace")
        at = end
    return found
