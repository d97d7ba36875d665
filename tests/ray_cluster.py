"""A Ray cluster of several nodes on this machine, for tests."""

import contextlib
import os
import random
import signal
import sys
import time

import numpy as np
import torch
from torch.utils.data import Dataset

# Before Ray is imported: nobody is told, and its processes get as much of a busy machine as others.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's name
# All addresses are the loopback one, as Ray has it where it is for one machine.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])

import ray
from ray.cluster_utils import Cluster

_STORE = 100 << 20
# A node's death is noticed after about two seconds, not after fifteen.
_HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 2,
}


class Nodes:
    """A head without CPUs, where the test runs, and nodes for actors, one at first; all on this machine."""

    def __init__(self):
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": _STORE,
                "_system_config": _HEALTH,
            },
        )
        self.nodes = [self.add()]
        ray.init(
            address=self._cluster.address,
            log_to_driver=False,
            logging_level="ERROR",
        )

    def add(self, cpus=2):
        return self._cluster.add_node(num_cpus=cpus, object_store_memory=_STORE, wait=False)

    def remove(self, node):
        """Kill a node, as if its machine had lost power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        ray.shutdown()
        self._cluster.shutdown()


class Draws(Dataset):
    """Tuples with random numbers and text, which take a while in an actor."""

    def __init__(self, size, seconds=0.001):
        self.size, self.seconds, self.main = size, seconds, os.getpid()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if os.getpid() != self.main:
            time.sleep(self.seconds)
        noise = random.random() + np.random.random_sample()
        return torch.randn(5), np.float32(noise), index, f"sample {index}"


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
