"""Ranks of torch.distributed as processes of a test: forked, with gloo, and what each of them returns."""

import multiprocessing
import pickle
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from rekindle.choose import agreement

SECONDS = 60  # that ranks wait for each other: longer than they take on a busy machine


def wait_no_longer_than(seconds):
    """From now on this rank waits so long for the others: for those that will not come."""
    agreement._met().store.set_timeout(timedelta(seconds=seconds))
    agreement._ANSWER_SECONDS = 0


def _run(function, rank, world, folder, arguments, results):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=SECONDS),
    )
    try:
        # As bytes: tensors would go as files of shared memory, which end with this process.
        results.put((rank, "returned", pickle.dumps(function(rank, *arguments))))
    except BaseException:
        results.put((rank, "raised", traceback.format_exc()))
    finally:
        dist.destroy_process_group()


def run_ranks(function, world, *arguments, killed=False):
    """What `function(rank, *arguments)` returns on each rank; AssertionError with the first traceback.

    If they are to be `killed`, how each of them ended.
    """
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_run, args=(function, rank, world, folder, arguments, results))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        found = [] if killed else [results.get() for _ in processes]
        for process in processes:
            process.join()
        if killed:
            return [process.exitcode for process in processes]
    for rank, how, what in found:
        assert how == "returned", f"rank {rank}: {what}"
    return [pickle.loads(what) for _, _, what in sorted(found)]
