"""What choosing the samples of an epoch costs, and what the scores that it follows take.

Question: Can 10^8 samples be chosen from in less than 5 s, by scores of at most 24 bytes each?

Method: for each method an interpreter of its own, with scores of 10^8 samples as some epochs of training have
left them. An epoch is chosen once for each round, in CPU time: the method's plan, its check, and the counting
of uses, to a choice that can be laid out. What numba compiles is compiled before. Bytes are those of the
arrays that stay, with the method's own.

    python -m benchmarks choosing

Reading: s and bytes, less is better. The first round touches memory that the process did not have before.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.answer import Bar, Comparison, list_values
from benchmarks.fresh_process import in_fresh_process

SIZE, AT_ONCE, COMPILED = 10**8, 1 << 20, 1 << 23
METHODS = (
    "Uniform",
    "RandomSubset",
    "InfoBatch",
    "Kakurenbo",
    "SelectiveBackprop",
    "OnlineBatchSelection",
    "ActiveBias",
    "Buckets, by the model",
    "Buckets, by load times too",
)


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Seconds to choose an epoch and bytes a sample for each method; `data` is not used."""
    del data
    found = {name: in_fresh_process(chosen, name=name, size=SIZE, rounds=rounds) for name in METHODS}
    seconds = {name: one["seconds"] for name, one in found.items()}
    nbytes = {name: [one["bytes"]] for name, one in found.items()}
    quick, small = ({name: [bar] for name in METHODS} for bar in (Bar("<", 5, "s"), Bar("≤", 24, "bytes")))
    return [
        list_values("choosing an epoch of 10^8", "s of CPU", seconds, quick),
        list_values("scores", "bytes a sample", nbytes, small),
    ]


def chosen(name: str, size: int, rounds: int) -> dict[str, Any]:
    """CPU time of each choice, and the bytes a sample of what is kept for it."""
    from rekindle.choose.importance.epoch_choice import choose_samples

    method, scores = _method(name), None
    for count in (COMPILED, size):
        method, scores = _method(name), _scores(_method(name), count)
        seconds = []
        for epoch in range(4, 5 if count < size else 4 + rounds):
            start = time.process_time()
            choose_samples(method, epoch, scores, None)
            seconds.append(time.process_time() - start)
    assert scores is not None
    arrays = {id(array): array for array in scores.arrays().values() if array.flags.writeable}
    own = method.state_dict() or {}
    kept = [*arrays.values(), *(value for value in own.values() if isinstance(value, np.ndarray))]
    return {"seconds": seconds, "bytes": sum(array.nbytes for array in kept) / size}


def _method(name: str) -> Any:
    import rekindle as rk
    from rekindle.choose.importance.method import as_method

    kind, _, variant = name.partition(", ")
    arguments: dict[str, Any] = {
        "InfoBatch": {"epochs": 10},
        "Kakurenbo": {"epochs": 10},
        "OnlineBatchSelection": {"epochs": 10},
        "Buckets": {"warmup": 1, "patience": 99, "bottleneck": "io" if "times" in variant else "cpu"},
    }.get(kind, {})
    return as_method(getattr(rk, kind)(**arguments))


def _scores(method: Any, size: int) -> Any:
    """Scores of a made-up model after four epochs."""
    from rekindle.choose import Scores
    from rekindle.choose.importance.method import arrays_read_by

    scores, rng = Scores.unknown(size, 1, arrays_read_by(method)), np.random.default_rng(0)
    loss = rng.exponential(0.5, AT_ONCE).astype(np.float32)
    right = np.exp(-loss)
    known = {
        "loss": loss, "epoch": 3, "probability": right, "rival": (1 - right) * rng.random(AT_ONCE),
        "correct": right > 0.5, "count": 4, "mean": right, "squares": loss / 10,
        "load_seconds": rng.random(AT_ONCE), "nbytes": rng.integers(1000, 10**6, AT_ONCE), "loads": 1,
    }  # fmt: skip
    for name, value in known.items():
        array = getattr(scores, name)
        if array.flags.writeable:
            for start in range(0, size, AT_ONCE):
                part = array[start : start + AT_ONCE]
                part[:] = value[: len(part)] if isinstance(value, np.ndarray) else value
    return scores
