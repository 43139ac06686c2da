"""`cloudtrain init PROVIDER`: writes a commented config to start from."""

from __future__ import annotations

import re
import secrets
import string
from pathlib import Path

from cloudtrain.core.errors import UsageError
from cloudtrain.core.paths import PACKAGE

SCHEMA = ".cloudtrain-schema.json"
"""Written next to the config, so that editors can validate it offline."""

SCRIPT = "train.py"
"""The script that templates run; written to an empty folder."""

NAME = "my-cluster"
"""Placeholder for the cluster's name in templates."""

_CONFIGS = PACKAGE / "configs"


def init(provider: str, destination: Path) -> Path:
    """Write the provider's template to `destination`, or to `<provider>.yaml` in that folder;
    returns its path.

    An empty folder gets a script too, so that the config runs as it is. Raises UsageError if the
    file exists.
    """
    path = destination / f"{provider}.yaml" if destination.is_dir() else destination
    text = _template(provider).replace(NAME, cluster_name(path.absolute().parent))
    try:
        alone = is_empty(path.parent)
        with path.open("x", encoding="utf-8") as file:
            file.write(text.replace("$schema=../schema.json", f"$schema={SCHEMA}", 1))
        schema = _CONFIGS / "schema.json"
        (path.parent / SCHEMA).write_bytes(schema.read_bytes())
        if alone:
            script = _CONFIGS / "templates" / SCRIPT
            (path.parent / SCRIPT).write_bytes(script.read_bytes())
    except FileExistsError:
        raise UsageError(
            f"{path} already exists", hint="choose another file, or delete this one"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return path


def is_empty(folder: Path) -> bool:
    """True for a folder without files, hidden ones aside."""
    return not any(not path.name.startswith(".") for path in folder.iterdir())


def cluster_name(folder: Path) -> str:
    """`<folder>-<4 letters>`: a name is unique in an account, and folders often have the same."""
    words = re.sub(r"[^a-z0-9]+", "-", folder.name.lower())
    words = re.sub(r"^[^a-z]+", "", words)[:25].strip("-") or "cluster"
    return f"{words}-{''.join(secrets.choice(string.ascii_lowercase) for _ in range(4))}"


def providers() -> tuple[str, ...]:
    """Providers that have a template."""
    return tuple(sorted(path.stem for path in (_CONFIGS / "templates").glob("*.yaml")))


def _template(provider: str) -> str:
    if provider not in providers():
        raise UsageError(
            f"unknown provider {provider!r}", hint=f"use one of {', '.join(providers())}"
        )
    return (_CONFIGS / "templates" / f"{provider}.yaml").read_text(encoding="utf-8")
