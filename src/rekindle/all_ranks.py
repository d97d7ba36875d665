"""What all ranks of torch.distributed know together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rekindle.choose.scores import Loaded, Measured


class Findings(NamedTuple):
    """What was found in an epoch: how the model did, what loading cost, how the loop spent its time."""

    measured: Measured
    loaded: Loaded
    wait_seconds: float
    work_seconds: float


def rank_and_world() -> tuple[int, int]:
    """The number of this process and how many there are; (0, 1) without torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def put_together(own: Findings) -> Findings:
    """The findings of all ranks, in the order of the ranks: the same on each of them, to the bit."""
    if rank_and_world()[1] == 1:
        return own
    measured, loaded = own.measured, own.loaded
    whole: list[NDArray[np.generic]] = [measured.ids, measured.correct, measured.age]
    real: list[NDArray[np.generic]] = [measured.loss, measured.probability, measured.rival]
    # Counts first: ranks may have reported on different numbers of samples.
    counts = np.array([[len(measured.ids), len(loaded.ids)]], dtype=np.int64)
    numbers = np.concatenate(_gather(counts))
    by_sample = _gather(np.stack(whole, 1).astype(np.int64), numbers[:, 0])
    values = _gather(np.stack(real, 1).astype(np.float32), numbers[:, 0])
    loads = _gather(np.stack([loaded.ids, loaded.nbytes], 1).astype(np.int64), numbers[:, 1])
    seconds = _gather(loaded.seconds.astype(np.float32)[:, None], numbers[:, 1])
    spent = np.concatenate(_gather(np.array([[own.wait_seconds, own.work_seconds]], dtype=np.float64)))
    ids, correct, age = np.concatenate(by_sample).T
    loss, probability, rival = np.concatenate(values).T
    loaded_ids, nbytes = np.concatenate(loads).T
    return Findings(
        Measured(ids, loss, probability, rival, correct.astype(np.int8), age.astype(np.int32)),
        Loaded(loaded_ids, np.concatenate(seconds)[:, 0], nbytes),
        float(spent[:, 0].sum()),
        float(spent[:, 1].sum()),
    )


def _gather(rows: NDArray[np.generic], counts: NDArray[np.int64] | None = None) -> list[NDArray[np.generic]]:
    """Every rank's rows; integers travel as integers. `counts` says how many each has, if not the same."""
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
