"""Trains on several processes with DistributedDataParallel, and resumes in the middle of an epoch.

    torchrun --nproc-per-node=2 examples/ddp.py              # gloo on CPUs, NCCL on GPUs
    torchrun --nproc-per-node=2 examples/ddp.py              # again: goes on after the last checkpoint

Each rank saves where its own loader stands, so no sample of an interrupted epoch is seen twice or left out.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

import rekindle as rk


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--stop-after", type=int, help="end after so many steps, as a job's time limit would")
    parser.add_argument("--checkpoint", type=Path, default=Path("ddp.pt"))
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)  # the same data and the same first weights on every rank

    inputs = torch.randn(2000, 20)
    data = TensorDataset(inputs, (inputs[:, :5].sum(1) > 0).long())
    sampler = DistributedSampler(data, world, rank, seed=0)
    loader = rk.DataLoader(data, 50, sampler=sampler, num_workers=1, seed=0, device=device)
    network = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    first, done = 0, 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loaders"][rank])
        first, done = saved["epoch"], saved["step"]

    def save(epoch: int, step: int) -> None:
        loaders: list[object] = [None] * world
        dist.all_gather_object(loaders, loader.state_dict())
        if rank == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**states, "loaders": loaders, "epoch": epoch, "step": step}, options.checkpoint)

    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        seen, total = 0, torch.zeros((), device=device)
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()  # gradients are averaged over all ranks here
            optimizer.step()
            seen, total, done = seen + len(labels), total + loss.detach() * len(labels), done + 1
            if done % 10 == 0:
                save(epoch, done)
            if done == options.stop_after:
                dist.barrier()
                dist.destroy_process_group()
                return
        save(epoch + 1, done)
        if rank == 0:
            print(f"epoch {epoch}: {seen} samples on rank 0, loss {total.item() / max(1, seen):.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
