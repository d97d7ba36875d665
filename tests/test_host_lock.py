"""A lock of the host is waited for, and free when its holder dies."""

import os
import signal
import socket
import time
import uuid

import pytest

from host_members import FORK
from mortal import FOREVER
from rekindle.core import host_lock as locks
from rekindle.core.host_lock import host_lock
from waiting import HANGS


@pytest.fixture
def name():
    return uuid.uuid4().hex


def test_a_lock_is_waited_for_and_is_free_when_its_holder_dies(name):
    pipe, other = FORK.Pipe()

    def hold():
        with host_lock(name) as held:
            other.send(held)
            time.sleep(FOREVER)

    def wait():
        with host_lock(name) as held:
            other.send(held)

    holder = FORK.Process(target=hold, daemon=True)
    holder.start()
    assert pipe.recv() is True
    waiter = FORK.Process(target=wait, daemon=True)
    waiter.start()
    assert not pipe.poll(0.2)
    os.kill(holder.pid, signal.SIGKILL)
    assert pipe.poll(HANGS)
    assert pipe.recv() is True
    waiter.join()
    with host_lock(name, wait=0) as held:
        assert held


def test_a_lock_is_not_waited_for_longer_than_asked_and_not_held_by_children(name):
    with host_lock(name):
        with host_lock(name, wait=0.05) as again:
            assert not again
        child = FORK.Process(target=time.sleep, args=(FOREVER,), daemon=True)
        child.start()
    with host_lock(name, wait=0.5) as held:
        assert held
    child.kill()
    child.join()


def test_a_lock_that_another_user_holds_is_not_waited_for(name, monkeypatch):
    address = f"\0rekindle-{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(address)
        squatter.listen()
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        assert locks._take(address, time.time() + 1e9) is None
