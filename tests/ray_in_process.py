"""A stand-in for Ray in one process, in which a test decides what happens to each call of an actor.

Actors are objects; a call is carried out when somebody waits for it. `fate(number)` says what becomes of the
next call of an actor: see `FATES`.
"""

import pickle
from types import SimpleNamespace

from torch.utils.data import _utils

FATES = ("answer", "answer", "answer", "late", "lost", "dies", "killed", "node dies")


def sent(value):
    """A value as it arrives in another process: a copy, whose arrays are read-only."""
    buffers = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(pickled, buffers=[bytes(buffer) for buffer in buffers])


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class ObjectStoreFullError(RayError):
    pass


class _Ref:
    def __init__(self, actor, method, arguments):
        self.actor, self.method, self.arguments = actor, method, arguments
        self.is_late = False
        self.result = None

    def settle(self, fate):
        actor = self.actor
        if actor.end is not None:
            self.result = RayActorError(actor.end)
        elif fate == "dies":
            actor.end = "The actor is dead because its worker process has died."
            self.result = RayActorError(actor.end)
        elif fate in ("killed", "node dies"):
            others = actor.cluster.actors if fate == "node dies" else [actor]
            for one in others:
                if one.node == actor.node:
                    one.end = "its node has died" if fate == "node dies" else "killed by `ray.kill`"
            self.result = RayActorError(actor.end)
        else:
            arguments = sent(self.arguments)
            _utils.worker._worker_info = actor.worker_info  # as in a process of its own
            self.result = getattr(actor.target, self.method)(*arguments)
            actor.worker_info, _utils.worker._worker_info = _utils.worker._worker_info, None
            if fate == "lost":
                self.result = RayError("the object was lost")


class _Method:
    def __init__(self, actor, name):
        self.actor, self.name = actor, name

    def remote(self, *arguments):
        arguments = [one.value if isinstance(one, _Put) else one for one in arguments]
        ref = _Ref(self.actor, self.name, arguments)
        self.actor.queue.append(ref)
        return ref


class _Actor:
    def __init__(self, cluster, target, node):
        self.cluster, self.target, self.node = cluster, target, node
        self.queue, self.end, self.worker_info = [], None, None

    def __getattr__(self, name):
        return _Method(self, name)


class _Put:
    def __init__(self, value):
        self.value = sent(value)


class RayInProcess:
    """What the pool uses of the module `ray`."""

    def __init__(self, fate=lambda: "answer", nodes=2):
        self.fate, self._nodes, self.actors = fate, nodes, []
        self.exceptions = SimpleNamespace(
            RayError=RayError, RayActorError=RayActorError, ObjectStoreFullError=ObjectStoreFullError
        )
        self.cloudpickle = pickle
        strategy = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = SimpleNamespace(scheduling_strategies=strategy)

    def is_initialized(self):
        return True

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 4.0}} for _ in range(self._nodes)]

    def put(self, value):
        return _Put(value)

    def remote(self, kind):
        def create(*arguments):
            actor = _Actor(self, kind(*arguments), f"node {len(self.actors) % self._nodes}")
            self.actors.append(actor)
            return actor

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=create))

    def kill(self, actor):
        actor.end = actor.end or "killed by `ray.kill`"

    def wait(self, refs, num_returns, timeout):
        ready = [ref for ref in refs if ref.result is not None]
        if not ready and timeout:
            for actor in {id(ref.actor): ref.actor for ref in refs}.values():
                self._advance(actor)
            ready = [ref for ref in refs if ref.result is not None]
        return ready[:num_returns], [ref for ref in refs if ref not in ready[:num_returns]]

    def _advance(self, actor):
        """Carry out an actor's first call, unless it is late."""
        if not actor.queue:
            return
        ref = actor.queue[0]
        fate = "answer" if ref.method == "start" else self.fate()
        if fate == "late" and actor.end is None and not ref.is_late:
            ref.is_late = True
            return
        actor.queue.pop(0)
        ref.settle("answer" if fate == "late" else fate)

    def get(self, ref):
        if isinstance(ref.result, Exception):
            raise ref.result
        return sent(ref.result)
