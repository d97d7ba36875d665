"""Calls a function in a new interpreter, where each mathematics library has one thread.

A new interpreter rather than a fork: what is measured there owes nothing to what ran before.
Arguments and result are plain data, sent as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",  # torch, and most others
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}


def in_fresh_process(function: Callable[..., Any], **arguments: Any) -> Any:
    """What `function(**arguments)` returns; `subprocess.CalledProcessError` if it raises.

    `function` is found by name, so it is one of a module's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        call = [function.__module__, function.__qualname__, json.dumps(arguments), str(result)]
        subprocess.run(
            [sys.executable, "-m", "benchmarks.fresh_process", *call],
            check=True,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, **ONE_THREAD},
        )
        return json.loads(result.read_text(encoding="utf-8"))


def results_of(processes: Sequence[BaseProcess], results: SimpleQueue[Any]) -> list[Any]:
    """What some processes put, one result each, that run at once."""
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return found


def _main(module: str, name: str, arguments: str, result: str) -> None:
    function = getattr(importlib.import_module(module), name)
    Path(result).write_text(json.dumps(function(**json.loads(arguments))), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
