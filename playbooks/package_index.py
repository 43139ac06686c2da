"""`setup.index`: a package index of the user's own, asked before all others.

What it has comes from it alone, so that nobody can publish a package of the same name elsewhere
(docs.astral.sh/uv/concepts/indexes, "first-index"; read 2026-11-27). pip takes the newest version
of all indexes, whoever published it, so it installs nothing here. Files that `--find-links` names
count as those of every index (run with uv 0.13.9)."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

from cloudtrain.config.env_file import secret_of
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.network import split_user

OWN_INDEX = """\
# own_index URL USER: `setup.index`, whose password is the first line of stdin.
own_index() {
    index=$1 index_user=$2 index_password=
    [ -z "$index" ] || IFS= read -r index_password
}
"""


def arguments(config: ClusterConfig) -> tuple[str, str]:
    """URL and user for `own_index`, empty for none."""
    user, url = split_user(config.setup.index or "")
    if config.setup.index_password and not user:
        user = "__token__"  # as PyPI and GitLab have it (pypi.org/help/#apitoken)
    return url, unquote(user)


def password(config: ClusterConfig) -> Iterable[bytes]:
    """Stdin of a script that begins with `own_index`. Raises ConfigError."""
    if config.setup.index is None:
        return
    name = config.setup.index_password
    secret = secret_of(config, name, "setup.index_password") if name else None
    yield f"{secret.reveal() if secret else ''}\n".encode()
