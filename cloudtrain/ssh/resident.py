"""The Python that stays on a node: each program is a fork of it, and neither a channel nor a start
of its own. One program at a time; the node's side is node/resident.py."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import paramiko

from cloudtrain.core import ship
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import MOST
from cloudtrain.ssh.channel_io import (
    ChannelEnded,
    ChannelSilent,
    Feeder,
    Handler,
    TooMuch,
    Wakeup,
    close,
    drain,
    up_to_most,
)
from cloudtrain.ssh.connection import BROKEN, exit_code, start, why_ended

_AT_ONCE = 1 << 16
"""Bytes of a request that are sent without a thread: the window of a channel that waits is open."""

_FED = 0.2
"""Seconds to wait for an iterable whose program has ended, before the channel is given up."""


class Resident:
    """Runs one program at a time; `is_free` once it may run another one."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._is_free = True
        self._has_run = False
        start(channel, f"exec {ship.resident().shell()}")

    @property
    def is_free(self) -> bool:
        channel = self._channel
        over = channel.closed or channel.eof_received or channel.status_event.is_set()
        return self._is_free and not over

    def close(self) -> None:
        close(self._channel)

    def run(
        self,
        program: tuple[str, ...],
        *,
        stdin: bytes | Iterable[bytes],
        on_stdout: Handler | None,
        on_stderr: Handler | None,
        timeout: float | None,
    ) -> Completed:
        """Run a program, its text and its arguments, as `pump_channel` runs a command."""
        self._is_free = False
        channel, token = self._channel, f"\1{os.urandom(16).hex()}".encode()
        wakeup = Wakeup(channel)
        (stdout, keep_out), (stderr, keep_err) = up_to_most(), up_to_most()
        out, err = Section(token, on_stdout or keep_out), Section(token, on_stderr or keep_err)
        out.has_begun = err.has_begun = self._has_run
        self._has_run = True
        feeder = None
        try:
            head = _request(token, program)
            if isinstance(stdin, bytes) and len(head) + len(stdin) <= _AT_ONCE:
                _send(channel, head + b"".join(_pieces([stdin])), timeout)
            else:
                chunks = [stdin] if isinstance(stdin, bytes) else stdin
                feeder = Feeder(channel, _request_of(head, chunks), wakeup)
            while not (out.is_over and err.is_over):
                # Checked before the pipes are drained: later bytes wake us again.
                over = bool(channel.eof_received or channel.closed)
                drain(channel, out.feed, err.feed)
                if over:
                    break
                if not (out.is_over and err.is_over):
                    wakeup.wait(timeout)
            if feeder is not None and feeder.error is not None:
                raise feeder.error
            code = out.code
            if not (out.is_over and err.is_over):
                wakeup.wait_for(channel.status_event, timeout)
                code = self._ended(out, err)
            self._is_free = feeder is None or feeder.is_done(_FED)
            return Completed(exit_code=code, stdout=bytes(stdout), stderr=bytes(stderr))
        finally:
            if not self._is_free:
                self.close()
                if feeder is not None:
                    feeder.join()

    def _ended(self, out: Section, err: Section) -> int:
        """The exit code of a Python that has not started. Raises ChannelEnded for one that has."""
        code = exit_code(self._channel)
        if code is None or out.has_begun or err.has_begun:
            raise ChannelEnded(why_ended(self._channel))
        out.end()
        err.end()
        return code


def _send(channel: paramiko.Channel, data: bytes, timeout: float | None) -> None:
    """Send it; nothing if nobody reads it, as how the channel ended says more."""
    channel.settimeout(timeout)
    try:
        channel.sendall(data)
    except TimeoutError:
        raise ChannelSilent from None
    except BROKEN:
        pass


def _request(token: bytes, program: tuple[str, ...]) -> bytes:
    parts = [each.encode("utf-8", "surrogateescape") for each in program]
    lengths = b" ".join(b"%d" % len(part) for part in parts)
    return b"%s %s\n%s" % (token, lengths, b"".join(parts))


def _request_of(head: bytes, stdin: Iterable[bytes]) -> Iterator[bytes]:
    yield head
    yield from _pieces(stdin)


def _pieces(stdin: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces as they are sent: each message more costs both sides 0.2 ms."""
    for chunk in stdin:
        if len(chunk) > _AT_ONCE:
            yield b"%d\n" % len(chunk)
            yield chunk
        elif chunk:
            yield b"%d\n%b" % (len(chunk), chunk)
    yield b"0\n"


class Section:
    """Passes on one output between the marks of a program as it arrives. Raises TooMuch for what
    never begins, ChannelEnded for a mark that is none."""

    def __init__(self, token: bytes, take: Handler) -> None:
        self._first, self._last = b"<" + token, token + b" "
        self._take = take
        self._held = b""
        self.has_begun = self.is_over = False
        self.code = 0

    def feed(self, data: bytes) -> None:
        data, self._held = self._held + data, b""
        if not self.has_begun:
            _, self.has_begun, rest = _parted(data, self._first)
            if not self.has_begun:
                self._held = data
                if len(data) > MOST:
                    raise TooMuch
                return
            data = rest
        if self.is_over:
            return
        text, is_last, rest = _parted(data, self._last)
        if is_last:
            code, self.is_over, _ = _parted(rest[:_LONGEST], b">")
            if self.is_over:
                self.code = _number(code)
            elif len(rest) < _LONGEST:
                self._held = data[len(text) :]
            else:
                raise ChannelEnded(_NO_MARK)
        else:
            at = text.rfind(self._last[:1], max(0, len(text) - len(self._last)))
            if at >= 0 and self._last.startswith(text[at:]):
                text, self._held = text[:at], text[at:]
        if text:
            self._take(text)

    def end(self) -> None:
        """Pass on what came without a mark."""
        rest, self._held = self._held, b""
        if rest:
            self._take(rest)


_LONGEST = 10
"""Bytes of an exit code and the end of its mark."""

_NO_MARK = "the node's Python answered with an invalid exit code"


def _number(code: bytes) -> int:
    try:
        return int(code)
    except ValueError:
        raise ChannelEnded(_NO_MARK) from None


def _parted(data: bytes, mark: bytes) -> tuple[bytes, bool, bytes]:
    before, found, after = data.partition(mark)
    return before, bool(found), after
