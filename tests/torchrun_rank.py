"""A rank of `test_torchrun.py`: reads a dataset that notes what it computes, and says how it went on."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import rekindle as rk

SIZE, FACTOR = 60, 3


class Noted(Dataset):
    """Samples whose every computation is a line of a file."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        with open(f"{self.folder}/computed", "a") as file:
            file.write(f"{index}\n")
        return torch.full((50,), index)


def finish(sample):
    return sample + 0


def computed(folder):
    with open(f"{folder}/computed") as file:
        return len(file.readlines())


def main(folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = rk.DataLoader(
        Noted(folder),
        5,
        shuffle=True,
        seed=1,
        shard=(0, 1),
        reuse=rk.Refurbish(FACTOR),
        final_transform=finish,
    )
    # Both ranks read the same samples, as those do that validate, or hold parts of one model.
    first = [int(batch[0, 0]) for batch in loader]
    everyones = [None, None]
    dist.all_gather_object(everyones, (os.getpid(), first))
    assert everyones[0][1] == everyones[1][1]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the ranks that are left.
    after_one = computed(folder)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while is_alive(everyones[1][0]):
        time.sleep(0.02)
    second = [int(batch[0, 0]) for batch in loader]
    assert sorted(second) != second
    with open(f"{folder}/found", "w") as file:
        file.write(f"{after_one} {computed(folder) - after_one}")


def is_alive(pid):
    """Whether a process is neither gone nor a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main(sys.argv[1])
