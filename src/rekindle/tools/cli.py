"""The command line: `rekindle pack`, `rekindle info`, `rekindle verify`, `rekindle dedupe`."""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rekindle.core.printable import printable, printable_lines
from rekindle.core.progress import format_bytes
from rekindle.errors import ArgumentError, MissingPackageError, RekindleError

if TYPE_CHECKING:
    from rekindle.fetch.source import Source

OK, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130

_PACK = """\
Pack a folder of images, or anything else that `rekindle.open` reads, into one
file or into shards of it. The ending of DST selects the format: .h5 .hdf5
.tfrecord .tar .lmdb. Images are stored as they are unless --resize, --quality
or --raw-share are given.

DST appears when it is complete, and not before. A run that was interrupted or
killed resumes when it is started again with the same arguments; its work lies
in a hidden folder beside DST until then."""

_EXAMPLES = """\
examples:
  rekindle pack train/ train.h5
  rekindle pack train/ train.tar --shards 64
  rekindle pack photos/ photos.tar --labels photos.csv
  rekindle pack train/ small.tfrecord --resize 400 --quality 90 --raw-share 0.5
  rekindle pack s3://bucket/train.h5 train.lmdb"""

_INFO = """\
Show what is in a dataset: format, samples, classes, sizes. Headers of some
images are looked at; `rekindle verify` reads everything."""

_VERIFY = """\
Read every sample: check its checksum (where the format has one), decode it to
the end, check its label. Exit code 0 if everything is good, 1 if anything is
wrong, 2 if the arguments are."""

_DEDUPE = """\
Find near-duplicates: images that are nearly the same as others of their class,
by perceptual hashes. The file that --out writes is what rk.Redundancy takes;
--html shows the groups as pictures. Images that cannot be read are listed and
left out."""

_MOST_NAMED = 20  # images that cannot be read


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):  # Whatever a name holds, and whatever the terminal can show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parsed = _parsed(arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except ArgumentError as error:
        return _fail(error, FAILED if isinstance(error, MissingPackageError) else MISUSED)
    except (RekindleError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # `rekindle info … | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        return _fail(error, FAILED)
    except KeyboardInterrupt:
        hint = " Run the same command again to resume." if parsed.command == "pack" else ""
        return _fail(f"interrupted.{hint}", INTERRUPTED)


def _fail(reason: object, code: int) -> int:
    _print(f"rekindle: {reason}", file=sys.stderr)
    return code


def _print(text: str, file: TextIO | None = None) -> None:
    """Print a line that may have names from the data in it."""
    print(printable(text), file=file)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; an unknown option is answered with the nearest known one."""
    parser = _parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.exit(MISUSED, parser.format_help())
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        first = unknown[0].partition("=")[0]
        near = difflib.get_close_matches(first, parsed.options, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"See rekindle {parsed.command} --help."
        if not first.startswith("-"):
            hint = "Give many files as one pattern, in quotes, as 'train-*.tar'."
        parser.exit(MISUSED, f"rekindle: {parsed.command} does not take {first!r}. {hint}\n")
    return parsed


class _Version(argparse.Action):
    """Prints the version, which takes as long to find out as everything else that the help needs."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"rekindle {version('rekindle')}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rekindle", description="Pack, inspect and check datasets for training."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    pack = _add_pack(commands)
    info = commands.add_parser(
        "info",
        help="show what is in a dataset",
        description=_INFO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    info.set_defaults(run=_info)
    verify = commands.add_parser(
        "verify",
        help="read and check every sample",
        description=_VERIFY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument("--workers", type=_positive, metavar="N", help="number of threads (one a core)")
    verify.add_argument("--quiet", action="store_true", help="no progress bar")
    verify.set_defaults(run=_verify)
    dedupe = commands.add_parser(
        "dedupe",
        help="find near-duplicate images",
        description=_DEDUPE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    dedupe.add_argument("--threshold", type=int, metavar="N", help="bits of 256 that may differ (40)")
    dedupe.add_argument("--out", type=Path, metavar="FILE", help="write the groups to this file, as JSON")
    dedupe.add_argument("--html", type=Path, metavar="FILE", help="write a page that shows the groups")
    dedupe.add_argument("--workers", type=_positive, metavar="N", help="number of processes (one a core)")
    dedupe.add_argument("--quiet", action="store_true", help="no progress bar")
    dedupe.set_defaults(run=_dedupe)
    for command in (info, verify, dedupe):
        command.add_argument("source", metavar="FILE", help="a packed file, a pattern, a folder, or a URL")
        command.add_argument("--json", action="store_true", help="print JSON")
    for command in (pack, info, verify, dedupe):
        reading = command.add_argument_group("how the source is read")
        reading.add_argument("--format", help="hdf5, tfrecord, tar or lmdb, if it cannot be detected")
        reading.add_argument(
            "--images", metavar="NAME", help="HDF5 dataset of images, or ending of images in a tar"
        )
        reading.add_argument(
            "--labels", metavar="NAME", help="a CSV or JSON file, or the HDF5 dataset of labels"
        )
        command.allow_abbrev = False
        command.set_defaults(options=[name for action in command._actions for name in action.option_strings])
    return parser


def _add_pack(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    pack = commands.add_parser(
        "pack",
        help="pack images into HDF5, TFRecord, tar or LMDB",
        description=_PACK,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pack.add_argument("source", metavar="SRC", help="a folder, a packed file, a pattern of them, or a URL")
    pack.add_argument("target", metavar="DST", help="the file to write")
    pack.add_argument(
        "--resize", type=int, metavar="N", help="shrink images to a longer side of at most N pixels (as JPEG)"
    )
    pack.add_argument(
        "--quality",
        type=int,
        metavar="Q",
        help="store JPEGs of this quality (90 if resized, else as they are)",
    )
    pack.add_argument(
        "--raw-share",
        type=float,
        default=0.0,
        metavar="P",
        help="share of images, 0 to 1, to store as pixels, which need no decoding",
    )
    pack.add_argument(
        "--shards",
        type=int,
        default=1,
        metavar="N",
        help="write N files (of train.tar: train-00000-of-0000N.tar)",
    )
    pack.add_argument("--workers", type=_positive, metavar="N", help="number of threads (one a core)")
    pack.add_argument(
        "--skip-broken", action="store_true", help="decode every image, and leave out those that cannot be"
    )
    pack.add_argument("--overwrite", action="store_true", help="replace DST if it exists")
    pack.add_argument("--quiet", action="store_true", help="no progress bar")
    pack.set_defaults(run=_pack)
    return pack


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, but got {text!r}")
    return int(text)


def _open(parsed: argparse.Namespace) -> Source:
    from rekindle.fetch import open_source

    return open_source(parsed.source, parsed.labels, options=_options(parsed), unlabelled=True)


def _options(parsed: argparse.Namespace) -> dict[str, object]:
    given = {"format": parsed.format, "images": parsed.images}
    return {name: value for name, value in given.items() if value is not None}


def _pack(parsed: argparse.Namespace) -> int:
    from rekindle.tools.pack import pack

    source, started = _open(parsed), time.monotonic()
    unlabelled = sum(target < 0 for target in source.targets)
    if unlabelled:  # Before hours of work, not after.
        _print(
            f"rekindle: {unlabelled:,} of {len(source):,} samples have no label, and will be loaded with -1. "
            "Give --labels FILE, a CSV or JSON file of names and labels, or make a folder for each class.",
            file=sys.stderr,
        )
    done = pack(
        source,
        parsed.target,
        resize=parsed.resize,
        quality=parsed.quality,
        raw_share=parsed.raw_share,
        shards=parsed.shards,
        workers=parsed.workers,
        overwrite=parsed.overwrite,
        skip_broken=parsed.skip_broken,
        progress=not parsed.quiet,
    )
    took = max(time.monotonic() - started, 1e-9)
    shown = str(done.files[0]) if len(done.files) == 1 else f"{done.files[0]} … ({len(done.files)} files)"
    _print(
        f"{shown}: {done.samples:,} samples, {format_bytes(done.nbytes)}, "
        f"{took:.1f} s ({done.samples / took:,.0f} samples/s)"
    )
    for reason in done.left_out:
        _print(f"left out: {reason}", file=sys.stderr)
    return OK


def _info(parsed: argparse.Namespace) -> int:
    from rekindle.tools.dataset_info import info

    found = info(_open(parsed))
    print(json.dumps(found.to_dict(), indent=2) if parsed.json else printable_lines(repr(found)))
    return OK


def _verify(parsed: argparse.Namespace) -> int:
    from rekindle.errors import DataError, FormatError
    from rekindle.fetch.remote.object_store import is_url
    from rekindle.fetch.remote.redact import without_secrets
    from rekindle.tools.verify import verify

    try:
        found = verify(_open(parsed), workers=parsed.workers, progress=not (parsed.quiet or parsed.json))
    except DataError as error:
        path = without_secrets(parsed.source) if is_url(parsed.source) else parsed.source
        damaged = _damaged_files(parsed) if isinstance(error, FormatError) else []
        if parsed.json:
            found_of_files = {"error": str(error), "damaged_files": damaged}
            print(json.dumps({"path": path, "ok": False, **found_of_files}, indent=2))
        elif len(damaged) < 2:
            raise
        else:
            for one in damaged:
                _print(one)
            _print(f"{path}: {len(damaged):,} damaged files, whose samples cannot be found")
        return FAILED
    print(json.dumps(found.to_dict(), indent=2) if parsed.json else printable_lines(repr(found)))
    return OK if found.ok else FAILED


def _damaged_files(parsed: argparse.Namespace) -> list[str]:
    from rekindle.tools.damaged_files import damaged_files

    return damaged_files(parsed.source, parsed.labels, _options(parsed))


def _dedupe(parsed: argparse.Namespace) -> int:
    from rekindle.prepare.image_dataset import ImageDataset
    from rekindle.tools.duplicates_page import write_page
    from rekindle.tools.find_duplicates import find_redundancy

    for path in (parsed.out, parsed.html):
        if path is not None and not path.parent.is_dir():
            raise ArgumentError(f"there is no folder {str(path.parent)!r} to write to.")
    dataset = ImageDataset(_open(parsed))
    groups = find_redundancy(
        dataset, threshold=parsed.threshold, workers=parsed.workers, quiet=parsed.quiet or parsed.json
    )
    if parsed.out is not None:
        groups.save(parsed.out)
    if parsed.html is not None:
        write_page(groups, dataset, parsed.html)
    for reason in groups.unreadable[:_MOST_NAMED]:
        _print(f"left out: {reason}", file=sys.stderr)
    if parsed.json:
        summary = {
            "path": groups.data,
            "samples": groups.size,
            "groups": len(groups),
            "samples_in_groups": groups.samples,
            "redundant": groups.copies,
            "unreadable": len(groups.unreadable),
            **groups.found_by,
        }
        print(json.dumps(summary, indent=2))
        return OK
    _print(
        f"{groups.data}: {groups.size:,} samples, {len(groups):,} group{'s' * (len(groups) != 1)} of "
        "near-duplicates with "
        f"{groups.samples:,} samples; {groups.copies:,} are redundant ({groups.copies / groups.size:.1%})"
    )
    if groups.unreadable:
        left_out = (
            "sample cannot be read, and is"
            if len(groups.unreadable) == 1
            else "samples cannot be read, and are"
        )
        print(f"{len(groups.unreadable):,} {left_out} in no group")
    return OK
