"""The Include line in the user's ~/.ssh/config, by which plain ssh knows all clusters."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cloudtrain.core import ship
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import UsageError

_SPECIAL = re.compile(r"""[^\S ]|["'*?\[\]{}%$\\]""")
"""Characters that `Include` reads as something else: a glob, a token, a variable or a quote
(ssh_config(5), Include)."""
_SECTION = re.compile(r"\s*(host|match)[\s=]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Included:
    file: Path
    line: str
    added: bool
    """False if the file had it."""


def install_include(state: Path) -> Included:
    """Let this user's ssh know the clusters below this folder. Raises UsageError."""
    file, line = Path.home() / ".ssh" / "config", include_line(state)
    return Included(file=file, line=line, added=install(file, line))


def include_line(state: Path) -> str:
    """The line for the clusters below this folder; it names them by a pattern, so that it is right
    for those of later, too. Raises UsageError for a folder that no `Include` can name."""
    if _SPECIAL.search(str(state)):
        raise UsageError(
            f"no `Include` of ssh can name {str(state)!r}",
            hint="set CLOUDTRAIN_HOME to a folder without special characters, or write what "
            "`cloudtrain ssh-config NAME` prints to a file of your own",
        )
    files = f"{state}/clusters/*/ssh_config"
    return f'Include "{files}"' if " " in files else f"Include {files}"


def install(config: Path, line: str) -> bool:
    """Put the line above all others, as it would count for one host alone below a `Host`. False if
    it was there. Raises UsageError with the reason if the file could not be changed, or if the
    line stands where it does not count for all hosts."""
    if line in _lines(config):
        _refuse_below_section(config, line)
        return False
    if sys.platform != "linux":
        reason = "the script that edits it needs GNU coreutils"
        raise UsageError(f"{config} was not changed: {reason}", hint=_by_hand(line))
    try:
        config.parent.mkdir(mode=0o700, exist_ok=True)
        script = f'{ship.text("user_file.sh")}\nadd_first_line "$1" "$2"'
        done = subprocess.run(
            ["sh", "-c", script, "sh", str(config), line], capture_output=True, text=True
        )
    except OSError as error:
        raise UsageError(
            f"{config} was not changed: {error.strerror}", hint=_by_hand(line)
        ) from error
    if line not in _lines(config):
        reason = done.stderr.strip() or f"{config} was not changed"
        raise UsageError(reason, hint=_by_hand(line))
    return True


def _by_hand(line: str) -> str:
    return f"make this its first line yourself: {line}"


def _lines(config: Path) -> list[str]:
    try:
        return config.read_text("utf-8", "surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{config} cannot be read: {error.strerror}") from error


def _refuse_below_section(config: Path, line: str) -> None:
    lines = _lines(config)
    for above in lines[: lines.index(line)]:
        if _SECTION.match(above):
            section = f"it is below `{above.strip()}` and counts for that alone"
            raise UsageError(
                f"{config} has the line `{line}`, but {section}",
                hint="move it to the top of the file",
            )
