"""The line that adds one of this package's extras, by how the package was installed.

A bare `cloudtrain[gcp]` would ask an index for a name that may be somebody else's."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cloudtrain.core import paths
from cloudtrain.core.dataclass import dataclass

PACKAGE = "cloudtrain"
PROJECT = paths.PACKAGE.resolve().parent


@dataclass(frozen=True, kw_only=True)
class Installed:
    """Origin of this package, and the tool to which its environment belongs."""

    editable: Path | None = None
    """A checkout that runs as it is."""
    origin: str = ""
    """A path, or `git+https://…`; empty if it came from an index by its name."""
    owner: str = "pip"
    """pip, uv, `uv tool` or pipx."""
    environment: str = PACKAGE
    """pipx's name of the environment."""
    requires: tuple[str, ...] = ()
    """What the package's metadata require."""


def install_hint(extra: str, installed: Installed | None = None) -> str:
    """The command line that adds an extra to this installation."""
    found = installed or _installed()
    if found.owner == "pipx":
        return f"pipx inject {found.environment} {shlex.join(_packages(found, extra))}"
    if found.owner == "uv tool":
        more = " ".join(f"--with {shlex.quote(name)}" for name in _packages(found, extra))
        from_here = f"--editable {shlex.quote(str(found.editable))}" if found.editable else ""
        return f"uv tool install {more} {from_here or shlex.quote(found.origin or PACKAGE)}"
    pip = "uv pip install" if found.owner == "uv" else "pip install"
    if found.editable is not None:
        return f"{pip} -e {shlex.quote(f'{found.editable}[{extra}]')}"
    wanted = f"{found.origin or PACKAGE}[{extra}]"
    if "://" in found.origin:
        wanted = f"{PACKAGE}[{extra}] @ {found.origin}"
    return f"{pip} {shlex.quote(wanted)}"


def _packages(found: Installed, extra: str) -> list[str]:
    """Packages that the extra adds, for tools that add packages and not extras."""
    marked = re.compile(rf"(.+?)\s*;.*\bextra\s*==\s*['\"]{re.escape(extra)}['\"]")
    names = [match[1] for line in found.requires if (match := marked.match(line))]
    return [name.replace(" ", "") for name in names] or [f"{PACKAGE}[{extra}]"]


def _installed() -> Installed:
    import importlib.metadata  # slow to import

    owner, environment = _owner(Path(sys.prefix))
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
        direct = json.loads(distribution.read_text("direct_url.json") or "{}")
        requires = tuple(distribution.requires or ())
    except (importlib.metadata.PackageNotFoundError, ValueError, OSError):
        direct, requires = {}, ()
    checkout = PROJECT if (PROJECT / "pyproject.toml").is_file() else None
    info = direct.get("dir_info")
    is_editable = isinstance(info, dict) and info.get("editable") is True
    origin = origin_of(direct)
    editable = checkout or (Path(origin) if is_editable and origin.startswith("/") else None)
    return Installed(
        editable=editable,
        origin="" if editable else origin,
        owner=owner,
        environment=environment,
        requires=requires,
    )


def _owner(prefix: Path) -> tuple[str, str]:
    """Tool that made the environment, and the environment's name. Each tool leaves its own file.

    `pipx_metadata.json`: https://github.com/pypa/pipx/blob/main/src/pipx/pipx_metadata_file.py;
    `uv-receipt.toml`: https://docs.astral.sh/uv/concepts/tools/; `uv = VERSION` in pyvenv.cfg,
    seen with uv 0.5."""
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx", prefix.name
    if (prefix / "uv-receipt.toml").is_file():
        return "uv tool", PACKAGE
    try:
        is_uv = re.search(r"^uv\s*=", (prefix / "pyvenv.cfg").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        is_uv = None
    return ("uv" if is_uv else "pip"), PACKAGE


def origin_of(direct: dict[str, object]) -> str:
    """Path or URL that pip was given, by its record
    (https://packaging.python.org/en/latest/specifications/direct-url/)."""
    url, git = str(direct.get("url", "")), direct.get("vcs_info")
    parts = urlsplit(url)
    if parts.scheme == "file":
        return unquote(parts.path)
    if isinstance(git, dict):
        revision = git.get("requested_revision") or git.get("commit_id")
        return f"{git.get('vcs', 'git')}+{url}" + (f"@{revision}" if revision else "")
    return url
