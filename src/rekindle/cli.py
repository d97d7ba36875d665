"""The command line: `rekindle pack`, `rekindle info`, `rekindle verify`, `rekindle dedupe`."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rekindle import __version__
from rekindle.errors import ArgumentError, RekindleError
from rekindle.progress_bar import in_words, progress_bar

OK, WRONG, MISUSED, INTERRUPTED = 0, 1, 2, 130

_PACK = """\
Pack a folder of images, or anything else that `rekindle.open` reads, into one
file or into shards of it. The ending of DST says how: .h5 .hdf5 .tfrecord .tar
.lmdb. Images are stored as they are unless --resize, --quality or --raw-share
ask for something else.

DST appears when it is complete, and not before. A run that was interrupted or
killed goes on where it was when it is started again with the same arguments;
its work lies in a hidden folder beside DST until then."""

_EXAMPLES = """\
examples:
  rekindle pack train/ train.h5
  rekindle pack train/ train.tar --shards 64
  rekindle pack train/ small.tfrecord --resize 400 --quality 90 --raw-share 0.5
  rekindle pack s3://bucket/train.h5 train.lmdb"""

_VERIFY = """\
Read every sample: is its checksum right (where the format has one), can it be
decoded to the end, is its label in range? Exit code 0 if all is well, 1 if
anything is wrong, 2 if the question itself was."""

_DEDUPE = """\
Find images that are nearly the same as others of their class, by perceptual
hashes, as groups of near-copies. The file that --out writes is what
rk.Redundancy takes; --html shows the groups as pictures. Images that cannot be
read are named and left out."""

_MOST_NAMED = 20  # images that cannot be read


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parsed = _parsed(arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except ArgumentError as error:
        return _fail(error, MISUSED)
    except (RekindleError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # `rekindle info … | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return WRONG
        return _fail(error, WRONG)
    except KeyboardInterrupt:
        hint = " Run the same command again to go on." if parsed.command == "pack" else ""
        return _fail(f"interrupted.{hint}", INTERRUPTED)


def _fail(why: object, code: int) -> int:
    print(f"rekindle: {why}", file=sys.stderr)
    return code


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; who misspells an option is told the nearest one."""
    parser = _parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        first = unknown[0].partition("=")[0]
        near = difflib.get_close_matches(first, parsed.options, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"See rekindle {parsed.command} --help."
        parser.exit(MISUSED, f"rekindle: {parsed.command} does not take {first!r}. {hint}\n")
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rekindle", description="Pack, inspect and check data sets for training."
    )
    parser.add_argument("--version", action="version", version=f"rekindle {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

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
        "--resize", type=int, metavar="N", help="make the longer side at most N pixels (as JPEG)"
    )
    pack.add_argument("--quality", type=int, metavar="Q", help="store as JPEG of this quality (resized: 90)")
    pack.add_argument(
        "--raw-share",
        type=float,
        default=0.0,
        metavar="P",
        help="store this share as pixels, which need no decoding",
    )
    pack.add_argument("--shards", type=int, default=1, metavar="N", help="write N files (DST-00000-of-0000N)")
    pack.add_argument("--workers", type=_positive, metavar="N", help="threads (all cores)")
    pack.add_argument("--skip-broken", action="store_true", help="leave out images that cannot be read")
    pack.add_argument("--overwrite", action="store_true", help="replace DST if it is there")
    pack.add_argument("--quiet", action="store_true", help="no progress bar")
    pack.set_defaults(run=_pack)

    info = commands.add_parser("info", help="say what is in a data set")
    info.set_defaults(run=_info)
    verify = commands.add_parser(
        "verify",
        help="read and check every sample",
        description=_VERIFY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument("--workers", type=_positive, metavar="N", help="threads (all cores)")
    verify.add_argument("--quiet", action="store_true", help="no progress bar")
    verify.set_defaults(run=_verify)
    dedupe = commands.add_parser(
        "dedupe",
        help="find images that are nearly the same",
        description=_DEDUPE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    dedupe.add_argument("--threshold", type=int, metavar="N", help="bits of 256 that may differ (40)")
    dedupe.add_argument("--out", type=Path, metavar="FILE", help="write the groups to this file, as JSON")
    dedupe.add_argument("--html", type=Path, metavar="FILE", help="write a page that shows the groups")
    dedupe.add_argument("--workers", type=_positive, metavar="N", help="processes (one a core)")
    dedupe.add_argument("--quiet", action="store_true", help="no progress bar")
    dedupe.set_defaults(run=_dedupe)
    for command in (info, verify, dedupe):
        command.add_argument("source", metavar="FILE", help="a packed file, a pattern, a folder, or a URL")
        command.add_argument("--json", action="store_true", help="answer in JSON")
    for command in (pack, info, verify, dedupe):
        reading = command.add_argument_group("how the source is read")
        reading.add_argument("--format", help="hdf5, tfrecord, tar or lmdb, if its bytes do not tell")
        reading.add_argument("--images", metavar="NAME", help="the data set or the ending of images")
        reading.add_argument("--labels", metavar="NAME", help="a CSV or JSON file, or the data set of labels")
        command.allow_abbrev = False
        command.set_defaults(options=[name for action in command._actions for name in action.option_strings])
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, but got {text!r}")
    return int(text)


def _open(parsed: argparse.Namespace) -> Any:
    from rekindle.fetch import open_source

    options = {"format": parsed.format, "images": parsed.images}
    return open_source(parsed.source, parsed.labels, options=options)


def _pack(parsed: argparse.Namespace) -> int:
    from rekindle.fetch.remote_store import is_url
    from rekindle.fetch.shown_urls import without_secrets
    from rekindle.packing import pack
    from rekindle.recipes import Recipe

    if is_url(parsed.target):
        shown = without_secrets(parsed.target)
        raise ArgumentError(f"DST is {shown!r}, but must be a file on this machine. Upload it then.")
    recipe = Recipe(parsed.resize, parsed.quality, parsed.raw_share)
    source = _open(parsed)
    started = time.monotonic()
    with progress_bar("packing", len(source), parsed.quiet) as told:
        done = pack(
            source,
            Path(parsed.target),
            recipe,
            shards=parsed.shards,
            workers=parsed.workers,
            overwrite=parsed.overwrite,
            skip_broken=parsed.skip_broken,
            told=told,
        )
    took = max(time.monotonic() - started, 1e-9)
    shown = str(done.files[0]) if len(done.files) == 1 else f"{done.files[0]} … ({len(done.files)} files)"
    print(
        f"{shown}: {done.samples:,} samples, {in_words(done.nbytes)}, "
        f"{took:.1f} s ({done.samples / took:,.0f} samples/s)"
    )
    for reason in done.left_out:
        print(f"left out: {reason}", file=sys.stderr)
    return OK


def _info(parsed: argparse.Namespace) -> int:
    from rekindle.inspection import describe

    told = describe(_open(parsed))
    if parsed.json:
        print(json.dumps(told, indent=2))
        return OK
    size, a_class = told["sample_bytes"], told["samples_a_class"]
    names = ", ".join(told["class_names"][:8]) + (", …" if told["classes"] > 8 else "")
    kinds = ", ".join(f"{count} {kind}" for kind, count in told["kinds"].items())
    lines = [
        ("path", told["path"]),
        ("format", f"{told['format']}, {told['files']:,} file{'' if told['files'] == 1 else 's'}"),
        ("samples", f"{told['samples']:,}, {in_words(told['bytes'])}"),
        (
            "a sample",
            f"{in_words(size['least'])} to {in_words(size['most'])}, median {in_words(size['median'])}",
        ),
        ("classes", f"{told['classes']:,}: {names}" if told["classes"] else "none"),
        ("a class", f"{a_class['least']:,} to {a_class['most']:,} samples"),
        ("unlabelled", f"{told['unlabelled']:,}"),
        ("images", f"{kinds} (of {told['looked_at']} looked at)"),
        ("pixels", " × ".join(f"{told[side]['least']}–{told[side]['most']}" for side in ("width", "height"))),
    ]
    if told["unreadable"]:
        lines.append(("unreadable", f"{told['unreadable']} of them; `rekindle verify` says which"))
    for name, value in lines:
        print(f"{name:<11} {value}")
    return OK


def _verify(parsed: argparse.Namespace) -> int:
    from rekindle.errors import DataError
    from rekindle.fetch.remote_store import is_url
    from rekindle.fetch.shown_urls import without_secrets
    from rekindle.inspection import verify

    try:
        source = _open(parsed)
        with progress_bar("verifying", len(source), parsed.quiet or parsed.json) as told:
            found = verify(source, workers=parsed.workers, told=told)
    except DataError as error:
        if not parsed.json:
            raise
        path = without_secrets(parsed.source) if is_url(parsed.source) else parsed.source
        print(json.dumps({"path": path, "ok": False, "error": str(error)}, indent=2))
        return WRONG
    if parsed.json:
        print(json.dumps(found, indent=2))
        return OK if found["ok"] else WRONG
    for bad in found["first_bad"]:
        where = "" if bad["path"] in bad["reason"] else f"{bad['path']}: "
        print(f"sample {bad['sample']}: {where}{bad['reason']}")
    if found["bad"] > len(found["first_bad"]):
        print(f"… and {found['bad'] - len(found['first_bad']):,} more")
    verdict = "all well" if found["ok"] else f"{found['bad']:,} bad"
    print(f"{found['path']}: {found['samples']:,} samples, {verdict}")
    return OK if found["ok"] else WRONG


def _dedupe(parsed: argparse.Namespace) -> int:
    from rekindle.dedupe import find_redundancy
    from rekindle.dedupe_page import write_page
    from rekindle.images import ImageDataset

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
        print(f"left out: {reason}", file=sys.stderr)
    told = {
        "path": groups.data,
        "samples": groups.size,
        "groups": len(groups),
        "samples_in_groups": groups.samples,
        "could_be_spared": groups.copies,
        "unreadable": len(groups.unreadable),
        **groups.found_by,
    }
    if parsed.json:
        print(json.dumps(told, indent=2))
        return OK
    print(
        f"{groups.data}: {groups.size:,} samples, {len(groups):,} groups of near-copies with "
        f"{groups.samples:,} samples; {groups.copies:,} could be spared ({groups.copies / groups.size:.1%})"
    )
    if groups.unreadable:
        print(f"{len(groups.unreadable):,} samples cannot be read, and are in no group")
    return OK
