"""Trains on several processes that share every epoch, and goes on with any other number of them.

    torchrun --nproc-per-node=2 examples/torchrun.py --stop-after 30    # a job that ends in the middle
    torchrun --nproc-per-node=3 examples/torchrun.py                    # goes on there, with one more

`shard="ranks"` gives each process its share, without a sampler. One state of the loader is saved: it says
where all processes together stand. The global batch stays the same, and so do the samples of every step.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import rekindle as rk


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--global-batch", type=int, default=120, help="of all processes together")
    parser.add_argument("--stop-after", type=int, help="end after so many steps, as a job's time limit would")
    parser.add_argument("--checkpoint", type=Path, default=Path("torchrun.pt"))
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)  # the same data and the same first weights on every rank

    inputs = torch.randn(2400, 20)
    data = TensorDataset(inputs, (inputs[:, :5].sum(1) > 0).long())
    loader = rk.DataLoader(
        data, options.global_batch // world, shuffle=True, seed=0, shard="ranks", num_workers=1, device=device
    )
    network = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    first = done = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first, done = saved["epoch"], saved["step"]

    for epoch in range(first, options.epochs):
        seen = total = torch.zeros((), device=device)
        for features, labels in loader:
            loss = nn.functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, seen, done = total + loss.detach() * len(labels), seen + len(labels), done + 1
            if done == options.stop_after:
                break
        sums = torch.stack([total, seen])
        dist.all_reduce(sums)
        if rank == 0:
            print(f"epoch {epoch}, {world} ranks: {int(sums[1])} samples, loss {sums[0] / sums[1]:.4f}")
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            states |= {"loader": loader.state_dict(), "epoch": epoch, "step": done}
            torch.save(states, options.checkpoint)
        if done == options.stop_after:
            break
    dist.barrier()  # Gloo's thread lets go of our tensors: else its end and ours may wait for each other.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
