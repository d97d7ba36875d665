"""The engine's end of the line to a worker process: never waits for the other side.

A worker reads and writes whole messages and may block; the engine must not, because a worker may be busy,
stopped or dead. What cannot be sent yet is kept, and what has come in half is kept until the rest is there.
"""

from __future__ import annotations

import array
import pickle
import socket
import struct
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

_AT_ONCE = 1 << 16  # bytes
_LENGTH = struct.Struct("!i")  # as multiprocessing's connections have it; −1 announces a longer one
_LONG_LENGTH = struct.Struct("!Q")
_LONGEST = 0x7FFFFFFF


def open_line() -> tuple[Line, Connection]:
    """Both ends: the engine's, and the one for the worker."""
    ours, theirs = socket.socketpair()
    return Line(ours), Connection(theirs.detach())


class Line:
    """Messages and descriptors out, messages in; nothing here blocks."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._out: deque[memoryview | int] = deque()  # bytes to send, and descriptors between them
        self._in = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def waiting_to_send(self) -> bool:
        return bool(self._out)

    def send(self, message: Any) -> None:
        """Send a message now, or as soon as there is room; OSError if the worker is gone."""
        # Not multiprocessing's pickler, which takes longer to make than our messages take to pickle.
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if len(data) > _LONGEST:
            head = _LENGTH.pack(-1) + _LONG_LENGTH.pack(len(data))
        else:
            head = _LENGTH.pack(len(data))
        self._out.append(memoryview(head + data))
        self.flush()

    def send_descriptor(self, fd: int) -> None:
        """Send a descriptor, for the worker to take with `recv_handle` after the messages before it."""
        self._out.append(fd)
        self.flush()

    def flush(self) -> None:
        """Send what there is room for."""
        try:
            while self._out:
                first = self._out[0]
                if isinstance(first, int):
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [first]))]
                    self._socket.sendmsg([b"\x01"], rights)
                    self._out.popleft()
                    continue
                sent = self._socket.send(first)
                if sent == len(first):
                    self._out.popleft()
                else:
                    self._out[0] = first[sent:]
        except BlockingIOError:
            return

    def receive(self) -> tuple[list[Any], bool]:
        """The messages that have come in whole, and whether more can come."""
        is_open = True
        try:
            while True:
                data = self._socket.recv(_AT_ONCE)
                if not data:
                    is_open = False
                    break
                self._in += data
                if len(data) < _AT_ONCE:
                    break
        except BlockingIOError:
            pass
        except OSError:
            is_open = False
        return list(self._messages()), is_open

    def _messages(self) -> Any:
        start = 0
        while (frame := self._frame(start)) is not None:
            begin, start = frame
            yield pickle.loads(bytes(self._in[begin:start]))
        del self._in[:start]

    def _frame(self, start: int) -> tuple[int, int] | None:
        """Where the message at `start` begins and ends, if all of it is there."""
        begin = start + _LENGTH.size
        if len(self._in) < begin:
            return None
        (length,) = _LENGTH.unpack_from(self._in, start)
        if length == -1:
            if len(self._in) < begin + _LONG_LENGTH.size:
                return None
            (length,) = _LONG_LENGTH.unpack_from(self._in, begin)
            begin += _LONG_LENGTH.size
        return (begin, begin + length) if len(self._in) >= begin + length else None
