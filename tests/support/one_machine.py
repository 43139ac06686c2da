"""One real node, without a cloud: as a provider makes it and `up` enters it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cloudtrain.cluster.bootstrap import await_first_login
from cloudtrain.core.model import Network, Node
from cloudtrain.providers.base.boot import user_data
from cloudtrain.ssh.keys import create_identity, load_identity
from cloudtrain.ssh.transport import SshTransport
from tests.standins.nodes import Nodes
from tests.support.nodes_here import Remembered

NAME = "mnist-chief0"


class Machine:
    """One node, as a provider makes it and `up` enters it."""

    def __init__(
        self,
        folder: Path,
        binds: Sequence[Path] = (),
        files: Path | None = None,
        own_files: Callable[[str], Mapping[str, str]] = lambda name: {},
    ) -> None:
        self.folder = folder
        self.down: list[str] = []
        self.nodes = Nodes(
            on_shutdown=self.down.append, binds=binds, files=files, own_files=own_files
        )
        self.address = self.nodes.address()
        self.node = Node(
            name=NAME,
            role="chief",
            index=0,
            state="running",
            address=self.address,
            internal=self.address,
        )
        create_identity(folder, [NAME])

    def start(self, expires: float | None = None, network: Network = Network()) -> None:  # noqa: B008
        identity = load_identity(self.folder)
        data = user_data(
            public_key=identity.public_key,
            host_key=identity.host_keys[NAME],
            expires=expires,
            network=network,
        )
        self.nodes.start(NAME, data, self.address)

    def enter(self) -> None:
        identity = load_identity(self.folder)
        with SshTransport(identity) as transport:
            await_first_login(
                [self.node], identity, self.folder, transport, transport, Remembered()
            )

    def ask(self, script: str) -> str:
        with SshTransport(load_identity(self.folder)) as transport:
            done = transport.ask(self.node, script)
        assert done.exit_code == 0, done.stderr
        return done.stdout.decode()

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.address, 22)) == 0
