"""No name that somebody gave becomes an option of ssh or a line of its config."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import cloudtrain
from cloudtrain.cluster.session import write_ssh_config
from cloudtrain.commands.ssh import editor_remote, shell_command, ssh_config
from cloudtrain.config.fields import InvalidValue
from cloudtrain.config.network_sections import address, user
from cloudtrain.config.yaml_source import Scalar, SourceLocation
from cloudtrain.core.errors import CloudtrainError, NodeError, UsageError
from cloudtrain.core.model import Node
from cloudtrain.core.partial_list import PartialList
from cloudtrain.ssh import keys
from cloudtrain.ssh.keys import create_identity
from cloudtrain.state import Records
from tests.support.keys_parts import NAMES, NODES
from tests.support.landing_parts import Heard
from tests.support.sources import nodes


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "*", "a b", "a\nProxyCommand x", "!a", ""])
def test_only_a_nodes_name_is_a_host_of_an_ssh_config(tmp_path: Path, name: str) -> None:
    identity = create_identity(tmp_path, NAMES)
    with pytest.raises(UsageError, match="is not allowed as a `Host`"):
        keys.ssh_config(identity, [replace(NODES[0], name=name)])


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (
            address,
            ("10.0.0.1", "::1", "fe80::1%eth0", "[::1]", "gpu_1", "gpu-1.example.com", "_a"),
            ("-oProxyCommand=x", "a b", "a\nb", "a;b", "a@b", "-"),
        ),
        (
            user,
            ("ann", "DOMAIN\\ann", "ann@example.com", "a.b", "machine$"),
            ("-oX", "a b", "a'b", "a\n", "$(x)"),
        ),
    ],
)
def test_hosts_of_a_file_have_addresses_and_users_that_are_no_options(
    read: object, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    assert callable(read)
    for text in good:
        assert read(Scalar(text, SourceLocation("f", 1))) == text
    for text in bad:
        with pytest.raises(InvalidValue):
            read(Scalar(text, SourceLocation("f", 1)))


def test_ssh_reaches_only_nodes_whose_host_key_is_on_record(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no name that anybody gave can be an option of ssh."""
    records = Records("mnist")
    records.create()
    create_identity(records.folder, ["mnist-chief0"])
    nodes = tuple(
        Node(name=name, role=role, index=0, state="running", address="192.0.2.1", internal="")
        for name, role in (("mnist-chief0", "chief"), ("mnist-worker0", "worker"))
    )

    class Listing:
        def nodes(self, cluster: str) -> PartialList[Node]:
            return PartialList(nodes)

    monkeypatch.setattr("cloudtrain.commands.ssh.open_provider", lambda _: Listing())
    monkeypatch.setattr("cloudtrain.commands.ssh.recorded_config", lambda _: None)
    monkeypatch.setattr("cloudtrain.commands.ssh.ensure_idle_process", lambda _: None)
    words = shell_command("mnist", None, ["-oProxyCommand=touch x"])
    assert words[:2] == ["ssh", "-F"]
    assert words[3:] == ["--", "mnist-chief0", "'-oProxyCommand=touch x'"]
    with pytest.raises(cloudtrain.core.errors.UsageError) as refused:
        shell_command("mnist", "worker0", [])
    assert "not of this machine's record: mnist-worker0" in (refused.value.hint or "")
    assert "mnist-worker0" not in ssh_config("mnist")


def test_every_ssh_that_is_started_gets_its_host_after_two_dashes() -> None:
    """All words of a list that begins with the program, in whatever module."""
    package = Path(cloudtrain.__file__).parent
    found = []
    folders = [package, package / "providers", package / "playbooks"]
    for path in [path for folder in folders for path in folder.glob("**/*.py")]:
        for node in nodes(path, ast.List):
            if not node.elts:
                continue
            first, *rest = node.elts
            program = first.value if isinstance(first, ast.Constant) else ast.unparse(first)
            if program in ("ssh", "scp", "rsync", "ssh-keygen", "ssh-keyscan"):
                found.append(path.name)
                words = [each.value for each in rest if isinstance(each, ast.Constant)]
                assert "--" in words or path.name == "ssh_proxy.py", ast.unparse(node)
    assert sorted(found) == ["ssh.py", "ssh_proxy.py", "user_ssh.py"]


@pytest.mark.parametrize(
    ("printed", "folder"),
    [
        (b"/home/a b/work\n", "/home/a b/work"),
        (b"Welcome to Ubuntu\n/home/ann\n", "/home/ann"),
        (b"--install-extension=/tmp/x.vsix\n", None),
        (b"/home/\x1b]0;x\x07\n", None),
        (b"", None),
    ],
)
def test_an_editor_gets_a_folder_and_no_option_of_a_nodes(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, printed: bytes, folder: str | None
) -> None:
    """A task can write into its user's .bashrc, which a login reads."""
    Records("mnist").create()
    node = replace(NODES[0], state="running")

    @contextmanager
    def opened(*_: object) -> Iterator[SimpleNamespace]:
        transport = SimpleNamespace(run=lambda *_: SimpleNamespace(stdout=printed))
        yield SimpleNamespace(nodes=[node], transport=transport)

    monkeypatch.setattr("cloudtrain.commands.ssh.open_session", opened)
    monkeypatch.setattr("cloudtrain.commands.ssh.recorded_config", lambda _: None)
    monkeypatch.setattr("cloudtrain.commands.ssh.Handle", lambda _: None)
    if folder is not None:
        assert editor_remote("mnist", None, Heard()).folder == folder
        return
    with pytest.raises(NodeError, match="names no folder"):
        editor_remote("mnist", None, Heard())


def test_a_write_that_fails_leaves_the_config_that_the_users_ssh_includes_as_it_was(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line of it would end every `ssh` of the user's."""
    records = Records("mnist")
    records.create()
    identity = create_identity(records.folder, NAMES)
    path = write_ssh_config(records, identity, (NODES[0],))
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises((OSError, CloudtrainError)):
        write_ssh_config(records, identity, (NODES[1],))
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o600
