"""How editors with VS Code's Remote-SSH open a folder on a node."""

from __future__ import annotations

from urllib.parse import quote

from cloudtrain.core.dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class EditorRemote:
    """A node as editors with VS Code's Remote-SSH name it."""

    node: str
    folder: str
    """Absolute: the work folder of the task's last run, or the user's home."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Those of `code`, https://code.visualstudio.com/docs/remote/troubleshooting (2026-11)."""
        return ("--remote", f"ssh-remote+{self.node}", self.folder)

    @property
    def uri(self) -> str:
        """Address for a browser: https://code.visualstudio.com/docs/configure/command-line"""
        return f"vscode://vscode-remote/ssh-remote+{self.node}{quote(self.folder)}"
