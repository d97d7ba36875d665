"""Runs the benchmark programs named on the command line (all, if none is) and shows the answers.

`--json FILE` writes all answers to one file; `--keep` writes each beside the code, to
`benchmarks/results/NAME.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.answer import table
from benchmarks.fresh_process import in_fresh_process
from benchmarks.program import PROGRAMS, answer, compile_kernels

RESULTS = Path(__file__).parent / "results"
FEWEST_TO_KEEP = 5


def main() -> int:
    """The exit status: 0 if every program ran, whatever its answer."""
    options = _options()
    console = Console()
    answers: list[dict[str, Any]] = []
    failed: list[str] = []
    data = str(options.data.resolve()) if options.data else None
    in_fresh_process(compile_kernels)
    for name in options.names or PROGRAMS:
        try:
            # In a process of its own, so that no program meets what another left in memory.
            found = in_fresh_process(answer, name=name, rounds=options.rounds, data=data)
        except subprocess.CalledProcessError:
            console.print(f"[bold red]{name} failed[/]; its error is above.\n")
            failed.append(name)
            continue
        answers.append(found)
        _show(found, console)
        if options.keep:
            RESULTS.mkdir(exist_ok=True)
            _write(RESULTS / f"{name}.json", found)
    if options.json:
        _write(options.json, answers)
    if failed:
        console.print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(PROGRAMS))
    parser.add_argument("--data", type=Path, help="a folder or tar of images; else the demo's")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds a contender (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all answers here")
    parser.add_argument("--keep", action="store_true", help="write them to benchmarks/results")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PROGRAMS]
    if unknown:
        parser.error(f"there is no {unknown[0]}: take from {', '.join(PROGRAMS)}.")
    if options.data and not options.data.exists():
        parser.error(f"--data: there is no {options.data}.")
    if options.rounds < 1:
        parser.error(f"--rounds takes at least 1, not {options.rounds}.")
    if options.keep and options.rounds < FEWEST_TO_KEEP:
        parser.error(f"--keep takes at least {FEWEST_TO_KEEP} rounds, not {options.rounds}.")
    return options


def _show(found: dict[str, Any], console: Console) -> None:
    console.print(f"[bold]{found['name']}[/]: {found['question']}")
    for comparison in found["comparisons"]:
        console.print(f"\n  {comparison['title']}", table(comparison), sep="\n", end="")
    console.print()


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
