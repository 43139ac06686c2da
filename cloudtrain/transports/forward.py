"""A port of 127.0.0.1 here that leads to a port on a node, for as long as it is open."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

_PIECE_BYTES = 1 << 15


class Stream(Protocol):
    """A socket or a channel."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def forward(open_tunnel: Callable[[tuple[str, int]], Stream]) -> Iterator[int]:
    """Listens before it yields the port. A tunnel that cannot be had closes that one stream."""
    listener = socket.create_server(("127.0.0.1", 0))
    streams: set[Stream] = set()
    accepter = threading.Thread(target=_accept, args=(listener, open_tunnel, streams), daemon=True)
    accepter.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for stream in tuple(streams):
            _end(stream)


def _accept(
    listener: socket.socket,
    open_tunnel: Callable[[tuple[str, int]], Stream],
    streams: set[Stream],
) -> None:
    while True:
        try:
            near, origin = listener.accept()
        except OSError:
            return
        threading.Thread(
            target=_join, args=(near, origin, open_tunnel, streams), daemon=True
        ).start()


def _join(
    near: socket.socket,
    origin: tuple[str, int],
    open_tunnel: Callable[[tuple[str, int]], Stream],
    streams: set[Stream],
) -> None:
    try:
        far = open_tunnel(origin)
    except Exception:  # noqa: BLE001 - the caller sees a closed stream, as with a refused port
        near.close()
        return
    streams.update((near, far))
    back = threading.Thread(target=_pump, args=(far, near), daemon=True)
    back.start()
    _pump(near, far)
    back.join()
    for stream in (near, far):
        streams.discard(stream)
        _end(stream)


def _pump(source: Stream, target: Stream) -> None:
    """To the end of `source`; then `target` is told, and its other direction goes on."""
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(_PIECE_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        target.shutdown(socket.SHUT_WR)


def _end(stream: Stream) -> None:
    with contextlib.suppress(OSError, EOFError):
        stream.shutdown(socket.SHUT_RDWR)
    stream.close()
