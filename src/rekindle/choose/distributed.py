"""What the ranks of torch.distributed know together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rekindle.choose.agreement import Fact, agree, has_ranks
from rekindle.choose.scores import Findings, Loaded, Measured

_Scalar = TypeVar("_Scalar", bound=np.generic)


def rank_and_world() -> tuple[int, int]:
    """The rank of this process and how many there are; (0, 1) without torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


class Gathered(NamedTuple):
    """The findings of all ranks, in the order of the ranks; and which of them have measured nothing."""

    findings: Findings
    silent: list[int]


def gathered(own: Findings, what: str, facts: Mapping[str, Fact], *, awaited: bool) -> Gathered:
    """The findings of all ranks: the same on each of them, to the bit.

    `awaited` says that this rank should have measured something; others are not among the `silent` ones.

    RankError, naming the ranks and `what` is exchanged, if some do not come, or differ in the `facts`.
    """
    if not has_ranks():
        return Gathered(own, [])
    agree(what, facts)
    measured, loaded = own.measured, own.loaded
    integers = np.stack([measured.ids, measured.correct, measured.age], 1).astype(np.int64)
    floats = np.stack([measured.loss, measured.probability, measured.rival], 1).astype(np.float32)
    # Counts first: ranks may have feedback on different numbers of samples.
    counts = np.array([[len(measured.ids), len(loaded.ids), awaited]], dtype=np.int64)
    numbers = np.concatenate(_gather(counts))
    ids, correct, age = np.concatenate(_gather(integers, numbers[:, 0])).T
    loss, probability, rival = np.concatenate(_gather(floats, numbers[:, 0])).T
    loads = _gather(np.stack([loaded.ids, loaded.nbytes], 1).astype(np.int64), numbers[:, 1])
    seconds = _gather(loaded.seconds.astype(np.float32)[:, None], numbers[:, 1])
    spent = np.concatenate(_gather(np.array([[own.wait_seconds, own.work_seconds]], dtype=np.float64)))
    loaded_ids, nbytes = np.concatenate(loads).T
    findings = Findings(
        Measured(ids, loss, probability, rival, correct.astype(np.int8), age.astype(np.int32)),
        Loaded(loaded_ids, np.concatenate(seconds)[:, 0], nbytes),
        float(spent[:, 0].sum()),
        float(spent[:, 1].sum()),
    )
    return Gathered(findings, np.flatnonzero((numbers[:, 0] == 0) & (numbers[:, 2] == 1)).tolist())


def _gather(rows: NDArray[_Scalar], counts: NDArray[np.int64] | None = None) -> list[NDArray[_Scalar]]:
    """Every rank's rows, of the same type; `counts` says how many each has, if they differ."""
    world = dist.get_world_size()
    most = len(rows) if counts is None else int(counts.max())
    if most == 0:
        return [rows] * world
    padded = np.zeros((most, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    # NCCL moves only what is on its device.
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    mine = torch.from_numpy(padded).to(device)
    everyones = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everyones, mine)
    lengths = [most] * world if counts is None else counts.tolist()
    return [one.cpu().numpy()[:length] for one, length in zip(everyones, lengths, strict=True)]
