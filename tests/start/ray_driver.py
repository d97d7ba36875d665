"""Starts a loader on a Ray cluster of its own, prints the processes of its actors and waits to be killed."""

import time

import rekindle as rk

if __name__ == "__main__":
    loader = rk.DataLoader(range(1000), 8, executor=rk.Ray(workers=2))
    batches = iter(loader)
    next(batches)
    while len(loader._parts.actors.pids()) < 2:
        next(batches)
    print(*loader._parts.actors.pids(), flush=True)
    time.sleep(600)
