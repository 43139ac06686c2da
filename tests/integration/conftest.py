"""Fixtures of several files: a node with OpenSSH's own server, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloudtrain.core.model import Node
from cloudtrain.ssh.transport import SshTransport
from tests.support.botocore_models import models_are_read_once, no_session_stays
from tests.support.sshd import SshdNode, sshd_node

__all__ = ["models_are_read_once", "no_session_stays"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshdNode]:
    with sshd_node(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def node(server: SshdNode) -> Node:
    return server.node


@pytest.fixture
def ssh(server: SshdNode) -> Iterator[SshTransport]:
    with SshTransport(server.identity) as transport:
        yield transport
