"""Keys are created once, private, and survive kills."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import paramiko
import pytest

from cloudtrain.core.errors import CredentialsError, UsageError
from cloudtrain.ssh.keys import create_identity, load_identity, ssh_config, write_known_hosts
from tests.support.keys_parts import NAMES, NODES


def test_every_key_is_its_owners_only(tmp_path: Path) -> None:
    identity = create_identity(tmp_path / "new" / "keys", NAMES)
    folder = tmp_path / "new" / "keys"
    assert identity.private_key == folder / "key"
    assert folder.stat().st_mode & 0o777 == 0o700
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["key", "key.pub", *NAMES]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_public_keys_belong_to_the_private_ones(tmp_path: Path) -> None:
    identity = create_identity(tmp_path, NAMES)
    key = paramiko.Ed25519Key.from_private_key_file(str(identity.private_key))
    assert identity.public_key == f"ssh-ed25519 {key.get_base64()}"
    assert (tmp_path / "key.pub").read_text() == f"{identity.public_key} cloudtrain\n"
    publics = {identity.public_key}
    for name in NAMES:
        host = paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "host_keys" / name))
        assert identity.host_keys[name].public == f"ssh-ed25519 {host.get_base64()}"
        publics.add(identity.host_keys[name].public)
    assert len(publics) == 3


def test_private_host_keys_do_not_print(tmp_path: Path) -> None:
    identity = create_identity(tmp_path, NAMES)
    assert "PRIVATE" not in repr(identity)
    assert "PRIVATE" in identity.host_keys[NAMES[0]].private.reveal()


def test_a_second_call_keeps_what_is_there_and_adds_what_is_missing(tmp_path: Path) -> None:
    first = create_identity(tmp_path, NAMES[:1])
    second = create_identity(tmp_path, NAMES)
    assert second.public_key == first.public_key
    assert second.host_keys[NAMES[0]].public == first.host_keys[NAMES[0]].public
    assert list(second.host_keys) == NAMES
    third = load_identity(tmp_path)
    assert third.host_keys[NAMES[1]].public == second.host_keys[NAMES[1]].public


def test_a_second_call_writes_nothing_that_is_there_already(tmp_path: Path) -> None:
    write_known_hosts(create_identity(tmp_path, NAMES), NODES)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*")}
    (tmp_path / "known_hosts").chmod(0o644)
    write_known_hosts(create_identity(tmp_path, NAMES), NODES)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == before
    assert (tmp_path / "known_hosts").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", [0, 1, 100, 300, -40, -30])
def test_a_half_written_key_is_refused_and_made_anew(tmp_path: Path, cut: int) -> None:
    create_identity(tmp_path, NAMES)
    for path in (tmp_path / "key", tmp_path / "host_keys" / NAMES[1]):
        whole = path.read_text()
        path.write_text(whole[:cut])
        with pytest.raises(CredentialsError, match="damaged") as caught:
            load_identity(tmp_path)
        assert str(path) in str(caught.value)
        assert caught.value.hint
        create_identity(tmp_path, NAMES)
        assert path.read_text() != whole
        paramiko.Ed25519Key.from_private_key_file(str(path))


def test_what_a_kill_left_of_a_write_is_no_host_key(tmp_path: Path) -> None:
    create_identity(tmp_path, NAMES)
    (tmp_path / "host_keys" / ".mnist-worker1.x7").write_text("half a k")
    assert list(load_identity(tmp_path).host_keys) == NAMES


def test_a_missing_identity_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="cannot be read") as caught:
        load_identity(tmp_path)
    assert caught.value.hint


def test_known_hosts_has_just_the_nodes_that_were_pinned(tmp_path: Path) -> None:
    identity = create_identity(tmp_path, NAMES)
    write_known_hosts(identity, NODES[1:])
    write_known_hosts(identity, NODES)
    assert identity.known_hosts.read_text() == (
        f"127.0.0.1 {identity.host_keys[NAMES[0]].public}\n"
        f"[127.0.0.2]:2222 {identity.host_keys[NAMES[1]].public}\n"
    )
    assert identity.known_hosts.stat().st_mode & 0o777 == 0o600


def test_a_value_that_no_ssh_config_can_hold_is_refused(tmp_path: Path) -> None:
    identity = create_identity(tmp_path, NAMES)
    node = dataclasses.replace(NODES[0], user='x"\nProxyCommand touch executed')
    with pytest.raises(UsageError, match="is not allowed in an ssh_config"):
        ssh_config(identity, [node])
