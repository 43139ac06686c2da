"""Owner of a cluster: the account's principal, a display name, and a machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cloudtrain.core.model import Owner
from cloudtrain.core.protocols import Principal


def label(text: str) -> str:
    """Make a text fit for a label's value on any cloud: `[a-z0-9_-]{1,63}`.
    https://cloud.google.com/compute/docs/labeling-resources#requirements is the strictest."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")[:63].strip("-_") or "unknown"


def login() -> str:
    """Login name of this user."""
    import getpass  # slow to import

    try:
        return label(getpass.getuser())
    except (KeyError, OSError):
        return "unknown"


def owner_of(principal: Principal | None, machine: str) -> Owner:
    """Owner for new labels. Without a principal, it is this user on this machine."""
    if principal is None:
        name = login()
        return Owner(id=digest(f"{name} on {machine}"), name=name, machine=machine)
    return Owner(id=digest(principal.id), name=label(principal.name), machine=machine)


def matches_owner(owner: Owner, text: str) -> bool:
    """True if `--owner WORDS` means this one: by its name, its id, or the principal itself."""
    if "@" in text or ":" in text:  # an e-mail or an ARN, which is unique
        return owner.id == digest(text)
    return text.lower() == owner.id or label(text) == owner.name


def digest(principal: str) -> str:
    """Short hash that cannot be mistaken for a name."""
    import hashlib  # slow to import, and `plan` needs none

    return hashlib.sha256(f"cloudtrain owner {principal.lower()}".encode()).hexdigest()[:12]


def machine_id(home: Path) -> str:
    """Id of this machine and state folder: the host's name and a random part, stored in `home`. A
    copy of the folder, or the same folder on another host, counts as another machine."""
    import hashlib  # slow to import, and `plan` needs none

    host = os.uname().nodename.partition(".")[0]  # the rest depends on the network
    try:
        boots = Path("/etc/machine-id").read_text("utf-8")
    except OSError:
        boots = ""
    folder_hash = hashlib.sha256(f"{boots}\n{host}\n{home.resolve()}".encode()).hexdigest()[:8]
    path = home / f"machine-{folder_hash}"
    name = label(host)[:40]
    try:
        return path.read_text("utf-8")
    except OSError:
        pass
    try:
        _keep(path, f"{name}-{os.urandom(4).hex()}")
        return path.read_text("utf-8")
    except OSError:  # a full disk must not prevent `down`
        return f"{name}-{folder_hash}"


def _keep(path: Path, text: str) -> None:
    """Write the id atomically; of several writers the first wins. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        new.touch(mode=0o600)
        new.write_text(text, "utf-8")
        os.link(new, path)
    except FileExistsError:
        pass
    finally:
        new.unlink(missing_ok=True)
