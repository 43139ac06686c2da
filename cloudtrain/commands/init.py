"""`cloudtrain init` and `docs`: the templates and the documentation that the package contains."""

from __future__ import annotations

import difflib
import re
import secrets
import string
from pathlib import Path

from cloudtrain.core.dataclass import dataclass
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
    returns its path. An empty folder gets a script too, so that the config runs as it is. Raises
    UsageError if the file exists."""
    path = destination / f"{provider}.yaml" if destination.is_dir() else destination
    if provider not in providers():
        known = ", ".join(providers())
        raise UsageError(f"unknown provider {provider!r}", hint=f"use one of {known}")
    text = (_CONFIGS / "templates" / f"{provider}.yaml").read_text("utf-8")
    text = text.replace(NAME, cluster_name(path.absolute().parent))
    try:
        alone = all(each.name.startswith(".") for each in path.parent.iterdir())
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


def cluster_name(folder: Path) -> str:
    """`<folder>-<4 letters>`: a name is unique in an account, and folders often have the same."""
    words = re.sub(r"[^a-z0-9]+", "-", folder.name.lower())
    words = re.sub(r"^[^a-z]+", "", words)[:25].strip("-") or "cluster"
    return f"{words}-{''.join(secrets.choice(string.ascii_lowercase) for _ in range(4))}"


def providers() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_CONFIGS / "templates").glob("*.yaml")))


PAGES = PACKAGE / "docs"

INDEX = "index"
"""The page that lists the others."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page; `text` is Markdown."""

    name: str
    title: str
    text: str


def pages() -> tuple[Page, ...]:
    return tuple(map(_read, paths().values()))


def page(name: str) -> Page:
    """The page `config`, also as `config.md` or `docs/config.md`. Raises UsageError. A page of a
    folder below is found by its own name, too: `states` is `internals/states`."""
    wanted = name.removeprefix("docs/").removesuffix(".md").lower()
    known = paths()
    known |= {path.stem: path for name, path in known.items() if "/" in name}
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean `cloudtrain docs {near[0]}`?" if near else "`--list` lists the pages"
        raise UsageError(f"there is no page {name!r}", hint=hint)
    return _read(known[wanted])


def paths() -> dict[str, Path]:
    """The file of each page, by name; those of folders below come last."""
    files = sorted(PAGES.glob("*.md")) + sorted(PAGES.glob("*/*.md"))
    return {_name(path): path for path in files}


def _name(path: Path) -> str:
    return path.relative_to(PAGES).with_suffix("").as_posix()


def _read(path: Path) -> Page:
    text = path.read_text("utf-8")
    head = next((line for line in text.splitlines() if line.startswith("# ")), path.stem)
    return Page(name=_name(path), title=head.removeprefix("# ").replace("`", ""), text=text)
