"""The engine's end of a pipe waits for no worker, whatever state that is in."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import struct
import time
from multiprocessing.reduction import recv_handle

import pytest

from rekindle.run.messages import Cancel, MapSlot, Ready, UnmapSlots
from rekindle.run.nonblocking_pipe import open_pipe

pytestmark = pytest.mark.timeout(60)
FORK = multiprocessing.get_context("fork")
MESSAGE = pickle.dumps(Ready())
FRAME = struct.pack("!i", len(MESSAGE)) + MESSAGE


@contextlib.contextmanager
def worker(target):
    """A process with the worker's end, and the engine's end."""
    pipe, theirs = open_pipe()
    process = FORK.Process(target=target, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield pipe, process
    finally:
        process.kill()
        process.join()
        pipe.close()


def send_half_and(how):
    def run(connection):
        os.write(connection.fileno(), FRAME + FRAME[:-3])
        os.kill(os.getpid(), how)

    return run


def received(pipe, until):
    """All messages, and whether the pipe is open, once `until` says so."""
    messages = []
    while True:
        found, is_open = pipe.receive()
        messages += found
        if until(messages, is_open):
            return messages, is_open
        time.sleep(0.01)


def test_half_a_message_of_a_stopped_worker_blocks_nothing():
    with worker(send_half_and(signal.SIGSTOP)) as (pipe, _):
        messages, is_open = received(pipe, lambda messages, _: messages)
        assert messages == [Ready()]
        assert is_open
        assert pipe.receive() == ([], True)


def test_a_worker_killed_in_the_middle_of_a_message_is_noticed_and_the_half_is_dropped():
    with worker(send_half_and(signal.SIGKILL)) as (pipe, _):
        messages, is_open = received(pipe, lambda _, is_open: not is_open)
        assert messages == [Ready()]
        assert not is_open


def stop_then_echo(connection):
    """Stopped at first; then every message is answered with what it says."""
    os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        message = connection.recv()
        connection.send_bytes(pickle.dumps(len(message.slots)))


def test_messages_to_a_stopped_worker_wait_and_arrive_in_order():
    with worker(stop_then_echo) as (pipe, process):
        sizes = [1, 200_000, 2, 300_000, 3]  # far more than a pipe holds
        for size in sizes:
            pipe.send(UnmapSlots(list(range(size))))
        assert not pipe.flush()
        os.kill(process.pid, signal.SIGCONT)
        answers = []
        while len(answers) < len(sizes):
            pipe.flush()
            answers += pipe.receive()[0]
            time.sleep(0.01)
        assert answers == sizes
        assert pipe.flush()


def read_descriptor(connection):
    assert connection.recv() == Cancel(7)
    slot = connection.recv()
    fd = recv_handle(connection)
    text = os.pread(fd, slot.nbytes, 0)
    assert connection.recv() == Cancel(8)
    connection.send_bytes(pickle.dumps(text))


def test_a_descriptor_arrives_between_the_messages_around_it(tmp_path):
    (tmp_path / "slot").write_bytes(b"samples")
    with worker(read_descriptor) as (pipe, _), (tmp_path / "slot").open("rb") as file:
        pipe.send(Cancel(7), MapSlot(1, 7), file.fileno(), Cancel(8))
        messages, _ = received(pipe, lambda messages, is_open: messages or not is_open)
        assert messages == [b"samples"]


def test_sending_to_a_dead_worker_is_an_error():
    with worker(lambda connection: None) as (pipe, process):
        process.join()
        with pytest.raises(BrokenPipeError):
            pipe.send(Cancel(1))
