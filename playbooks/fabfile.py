"""The playbooks as tasks of `fab`, for any machine that SSH reaches: docs/playbooks.md."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko
from fabric import Connection, task
from invoke.exceptions import Exit

from cloudtrain.config import load
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.protocols import Completed
from cloudtrain.core.shell import Command, Step, command, script
from cloudtrain.playbooks import base as base_playbook
from cloudtrain.playbooks import code as code_playbook
from cloudtrain.playbooks import code_packages, gpu_check
from cloudtrain.playbooks import horovod as horovod_playbook
from cloudtrain.playbooks import nvidia as nvidia_playbook
from cloudtrain.playbooks import tensorflow as tensorflow_playbook
from cloudtrain.playbooks.apply import apply
from cloudtrain.training.horovod import LIBRARY
from cloudtrain.trust.consent import refuse_untrusted

# fab puts this folder first in sys.path, where its code.py would hide the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parent]

Steps = Callable[[ClusterConfig, Node], Sequence[Step]]

HELP = {
    "file": "the config file",
    "role": "the node's role in it (default: chief), which selects the CPU or CUDA build",
}


def _playbook(name: str, steps: Steps, text: str, role: str = "chief") -> Any:
    """A task of `fab`, with this text in its list."""

    def run(c: Connection, file: str, role: str = role) -> None:
        if not isinstance(c, Connection):
            raise Exit("name a machine: fab -H HOST …", code=2)
        try:
            config = load(Path(file))
            refuse_untrusted(config)
            # Known host keys only; Fabric itself accepts any.
            c.client.set_missing_host_key_policy(paramiko.RejectPolicy())
            named = c.ssh_config.get("userknownhostsfile", "~/.ssh/known_hosts")
            for path in (Path(name.strip('"')).expanduser() for name in named.split()):
                if path.is_file():
                    c.client.load_system_host_keys(str(path))
            node = Node(
                name=c.original_host,
                role=role,
                index=0,
                state="running",
                address=c.host,
                internal=c.host,
                ssh_port=c.port,
                user=c.user,
            )
            apply(lambda node: steps(config, node), [node], _OverFabric(c), _Lines())
        except CloudtrainError as error:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            raise Exit(f"{error}{hint}", code=error.exit_code) from error
        except paramiko.SSHException as error:
            raise Exit(f"{c.original_host}: no SSH connection: {error}", code=1) from error

    run.__doc__ = text
    return task(name=name, help=HELP)(run)


def _package_steps(config: ClusterConfig, node: Node) -> Sequence[Step]:
    source = code_playbook.resolve(config)
    delivered = code_playbook.steps(source, config.name)
    return (*delivered, *code_packages.steps(config, node, source.digest))


base = _playbook("base", base_playbook.steps, "Wait for the boot; install packages.")
nvidia = _playbook("nvidia", nvidia_playbook.steps, "Install the driver for the GPUs.")
tensorflow = _playbook("tensorflow", tensorflow_playbook.steps, "Install what `setup:` lists.")
horovod = _playbook(
    LIBRARY.package, horovod_playbook.steps, "Build Horovod for that TensorFlow.", role="worker"
)
gpus = _playbook("gpus", gpu_check.steps, "Check that TensorFlow sees all GPUs.")
code = _playbook(
    "code",
    lambda config, _: code_playbook.steps(code_playbook.resolve(config), config.name),
    "Deliver the code of `code:` to a machine.",
)
packages = _playbook(
    "packages", _package_steps, "Deliver the code; install what it requires and itself."
)


class _OverFabric:
    """A Transport over one Fabric connection. Never `env=`: Fabric joins it unquoted."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(
        self,
        node: Node,
        command: Command,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        on_stdout: Callable[[bytes], None] | None = None,
        on_stderr: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        with _sent(self._connection, stdin) as path:
            line = script('place=$1; shift; exec "$@" <"$place"', path, *command.arguments)
            return self._completed(line, on_stdout, on_stderr)

    def ask(self, node: Node, text: str, *, timeout: float = 30.0) -> Completed:
        return self._completed(script(text), None, None)

    def close(self) -> None:
        self._connection.close()

    def _completed(
        self,
        line: Command,
        on_stdout: Callable[[bytes], None] | None,
        on_stderr: Callable[[bytes], None] | None,
    ) -> Completed:
        done = self._connection.run(
            line.shell(),
            warn=True,
            in_stream=False,
            out_stream=_Handed(on_stdout),
            err_stream=_Handed(on_stderr),
        )
        return Completed(
            exit_code=done.exited, stdout=done.stdout.encode(), stderr=done.stderr.encode()
        )


@contextmanager
def _sent(connection: Connection, data: bytes | Iterable[bytes]) -> Iterator[str]:
    """Bytes as a file: Fabric's own `in_stream` is text, one character at a time."""
    whole = data if isinstance(data, bytes) else b"".join(data)
    if not whole:
        yield "/dev/null"
        return
    path = connection.run("mktemp", hide=True, in_stream=False).stdout.strip()
    try:
        connection.put(io.BytesIO(whole), path)
        yield path
    finally:
        connection.run(command("rm", "-f", path).shell(), hide=True, in_stream=False)


class _Handed(io.StringIO):
    """Text that Fabric writes, passed on as bytes."""

    def __init__(self, handler: Callable[[bytes], None] | None) -> None:
        super().__init__()
        self._handler = handler

    def write(self, text: str) -> int:
        if self._handler:
            self._handler(text.encode("utf-8", "replace"))
        return len(text)


class _Lines:
    """A Stage as plain lines."""

    def node(self, name: str, text: str) -> None:
        print(f"{name}: {text}", flush=True)

    def done(self, name: str, text: str = "") -> None:
        self.node(name, f"done: {text}")
