"""Keys of one cluster: created once, pinned, and written for OpenSSH's own programs."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import struct
from collections.abc import Sequence
from pathlib import Path

from cloudtrain.core.errors import CredentialsError, UsageError
from cloudtrain.core.model import HostKey, Identity, Node
from cloudtrain.core.shell import Secret

_ACCEPTED = ".accepted"
"""Suffix of the file beside a node's first host key; no node's name has a dot."""

_NODE = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
"""Names of nodes, of their cluster, role and index: `Host` takes patterns and several words."""

_MAGIC = b"openssh-key-v1\0"
_PEM = re.compile(
    r"\A-----BEGIN OPENSSH PRIVATE KEY-----\n([A-Za-z0-9+/=\n]+)"
    r"-----END OPENSSH PRIVATE KEY-----\n?\Z"
)


def create_identity(folder: Path, nodes: Sequence[str]) -> Identity:
    """Create an Ed25519 user key and one host key for each node, in `folder`, readable by its owner
    only. Existing keys are kept; a missing or damaged key is created again, so a second call after
    a kill repairs the first one's work."""
    hosts = folder / "host_keys"
    for each in (folder, hosts):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        each.chmod(0o700)
    public = _public(_adopt_or_make(folder / "key"))
    _write(folder / "key.pub", f"{public} cloudtrain\n")
    for node in nodes:
        _adopt_or_make(hosts / node)
    return load_identity(folder)


def load_identity(folder: Path) -> Identity:
    """Load the keys that `create_identity` created. Raises CredentialsError naming a bad one."""
    host_keys = {}
    for path in sorted((folder / "host_keys").glob("[!.]*")):
        if path.suffix == _ACCEPTED:
            continue
        text, accepted = _read(path), path.with_suffix(_ACCEPTED)
        host_keys[path.name] = HostKey(
            public=_public_or_refuse(path, text),
            private=Secret(text),
            accepted=tuple(_read(accepted).splitlines()) if accepted.exists() else (),
        )
    key = folder / "key"
    return Identity(
        private_key=key,
        public_key=_public_or_refuse(key, _read(key)),
        host_keys=host_keys,
        known_hosts=folder / "known_hosts",
    )


def new_host_key() -> HostKey:
    """Create a host key pair that is on no disk yet."""
    text = _generate()
    return HostKey(public=_public(text), private=Secret(text))


def accept_host_key(folder: Path, node: str, public_keys: Sequence[str]) -> None:
    """Record the host keys that the node may have from now on, also for later commands."""
    _write(folder / "host_keys" / f"{node}{_ACCEPTED}", "".join(f"{key}\n" for key in public_keys))


def renew_host_key(folder: Path, node: str) -> HostKey:
    """Create another bootstrap host key for a recreated node: the old one was in its user data."""
    path = folder / "host_keys" / node
    made = new_host_key()
    _write(path, made.private.reveal())
    path.with_suffix(_ACCEPTED).unlink(missing_ok=True)
    return made


def is_known(identity: Identity, node: Node) -> bool:
    """True if a host key of the node is on record: without one, it may be anybody's machine."""
    return bool(node.host_keys) or node.name in identity.host_keys


def write_known_hosts(identity: Identity, nodes: Sequence[Node]) -> None:
    """Write the cluster's known_hosts: an entry for each of these nodes, and no other."""
    lines = [
        f"{_known_as(node)} {public}\n"
        for node in nodes
        if is_known(identity, node)
        for public in node.host_keys or identity.host_keys[node.name].pins
    ]
    _write(identity.known_hosts, "".join(lines))


def ssh_config(identity: Identity, nodes: Sequence[Node]) -> str:
    """Entries of ssh_config for ssh, scp, rsync and editors: `ssh mnist-worker0` by the node's
    name. Raises UsageError for a value that no ssh_config can hold."""
    blocks = []
    for node in nodes:
        if not _NODE.match(node.name):
            raise UsageError(f"{node.name!r} is not allowed as a `Host` of an ssh_config")
        kinds = [key.split()[0] for key in node.host_keys] or ["ssh-ed25519"]
        options = {
            "HostName": node.address,
            "Port": str(node.ssh_port),
            "User": node.user,
            "IdentityFile": _percent(identity.private_key),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": _percent(identity.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "HostKeyAlgorithms": ",".join(kinds),
        }
        lines = [f"    {option} {_quoted(value)}\n" for option, value in options.items()]
        if node.ssh_proxy:
            lines.append(f"    ProxyCommand {_proxy_command(node.ssh_proxy)}\n")
        blocks.append(f"Host {node.name}\n" + "".join(lines))
    return "\n".join(blocks)


def _adopt_or_make(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        text = path.read_text("ascii")
        _public(text)
        path.chmod(0o600)
        return text
    text = _generate()
    _write(path, text)
    return text


def _generate() -> str:
    """Create a private key in OpenSSH's format."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    return pem.decode("ascii")


def _public(private: str) -> str:
    """`ssh-ed25519 AAAA…` of an unencrypted private key; ValueError unless it is whole. The public
    key is in the file unencrypted (OpenSSH, PROTOCOL.key), so no second file can disagree and no
    crypto library is loaded to read it."""
    match = _PEM.match(private)
    if not match:
        raise ValueError("not an OpenSSH private key")
    blob = base64.b64decode(match.group(1))
    if not blob.startswith(_MAGIC):
        raise ValueError("not an OpenSSH private key")
    fields, position = [], len(_MAGIC)
    for field in ("cipher", "kdf", "kdf options", "count", "public", "private"):
        if field == "count":
            position += 4
            continue
        if position + 4 > len(blob):
            raise ValueError("it is truncated")
        (size,) = struct.unpack_from(">I", blob, position)
        fields.append(blob[position + 4 : position + 4 + size])
        position += 4 + size
    cipher, _, _, public, _ = fields
    if position != len(blob) or cipher != b"none":
        raise ValueError("it is truncated or encrypted")
    (size,) = struct.unpack_from(">I", public)
    return f"{public[4 : 4 + size].decode('ascii')} {base64.b64encode(public).decode('ascii')}"


def _public_or_refuse(path: Path, private: str) -> str:
    try:
        return _public(private)
    except ValueError as error:
        raise CredentialsError(f"{path} is damaged: {error}", hint=_REPAIR) from error


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"the key {path} cannot be read: {error}", hint=_REPAIR) from error


_REPAIR = "run `cloudtrain up` to recreate missing or damaged keys"


def _write(path: Path, text: str) -> None:
    """Write atomically, for its owner only from the first byte. An equal file is left alone."""
    if _holds(path, text):
        path.chmod(0o600)
        return
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _holds(path: Path, text: str) -> bool:
    """True if the file already has this content and is not a link."""
    try:
        return not path.is_symlink() and path.read_bytes() == text.encode()
    except OSError:
        return False


def _known_as(node: Node) -> str:
    """Name in known_hosts: a bare address for port 22, `[address]:port` for others."""
    return node.address if node.ssh_port == 22 else f"[{node.address}]:{node.ssh_port}"


def _proxy_command(argv: Sequence[str]) -> str:
    """Quote the words for the shell by which ssh starts it, and `%` for ssh itself."""
    line = shlex.join(argv)
    if any(letter in line for letter in "\n\r\0"):
        raise UsageError(f"{line!r} is not allowed in an ssh_config")
    return line.replace("%", "%%")


def _percent(path: Path) -> str:
    """Escape `%`: ssh_config expands tokens such as `%h` in these values."""
    return str(path).replace("%", "%%")


def _quoted(value: str) -> str:
    if value.startswith("-") or any(letter in value for letter in '"\n\r\0'):
        raise UsageError(f"{value!r} is not allowed in an ssh_config")
    return f'"{value}"' if not value or any(letter in value for letter in " \t#'\\") else value
