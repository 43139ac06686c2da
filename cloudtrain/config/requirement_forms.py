"""Requirements that pip could not install on a node, by their form alone: each with the user's
file and line, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePath

from cloudtrain.config import project_files, requirements
from cloudtrain.config.requirements import RequirementFile, package
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.node.requirement_lines import LOCAL, other_file


def problems(config: ClusterConfig) -> tuple[Problem, ...]:
    """Problems in `setup.packages` and in the files of `setup.requirements`. Raises ConfigError for
    an unreadable file."""
    found = []
    for number, text in enumerate(config.setup.packages):
        why = _line(text, config, of_code=False)
        if why is not None:
            field = f"setup.packages[{number}]"
            found.append(Problem(file=config.source, line=None, field=field, text=why))
    for file in _files(config):
        found += _of_file(config, file)
    return tuple(found)


def _files(config: ClusterConfig) -> tuple[RequirementFile, ...]:
    inside = requirements.of_code(config)
    if inside is None:
        return requirements.files(config)
    if config.code.path is None or config.code.git is not None:
        return ()
    root = config.folder / Path(config.code.path).expanduser()
    try:
        return requirements.of_folder(config, root, inside)
    except ConfigError:
        return ()  # code_packages.problems names what the code lacks


def _of_file(config: ClusterConfig, file: RequirementFile) -> Iterator[Problem]:
    whole = _other_form(file)
    if whole is not None:
        yield Problem(file=file.name, line=1, field="setup.requirements", text=whole)
        return
    of_code = requirements.of_code(config) is not None
    if of_code and file.path.name in project_files.FORMS:
        text = "is no requirements file, which nodes read: `setup.install: .` installs the project"
        yield Problem(file=file.name, line=1, field="setup.requirements", text=text)
        return
    for line in file.lines:
        why = _line(line.text, config, of_code=of_code)
        if why is not None:
            text = f"`{line.text}` {why}" if len(line.text) < 80 else why
            yield Problem(file=file.name, line=line.number, field="setup.requirements", text=text)


# ── files that are something else ────────────────────────────────────────────

_EXPORT = {
    "uv.lock": "`uv export --frozen --no-emit-project -o requirements.txt`",
    "poetry.lock": "`poetry export --without-hashes -o requirements.txt`",
    "pdm.lock": "`pdm export --without-hashes -o requirements.txt`",
    "Pipfile": "`pipenv requirements > requirements.txt`",
    "Pipfile.lock": "`pipenv requirements > requirements.txt`",
    "pixi.lock": "`pip list --format=freeze > requirements.txt` in the environment",
    "pixi.toml": "`pip list --format=freeze > requirements.txt` in the environment",
    "package.json": "a list of Python packages",
}
"""Of the tools' own documentation, read 2026-11-26: docs.astral.sh/uv/reference/cli/#uv-export,
github.com/python-poetry/poetry-plugin-export, pipenv.pypa.io/en/latest/cli.html."""


_NO_LIST = (
    "has no list under [project] dependencies that can be read here: export the lock file "
    f"({_EXPORT['uv.lock']} or {_EXPORT['poetry.lock']}), or set `setup.install: .`"
)


def _other_form(file: RequirementFile) -> str | None:
    """Text on what the whole file is, if it is not a requirements file."""
    name, text = file.path.name, file.text
    if name in project_files.FORMS and text:
        return None
    if name == project_files.PROJECT:
        return _NO_LIST
    if name == project_files.RUN:
        return "records no packages: name the run.json of a run that has an environment"
    kind = name if name in _EXPORT else _by_content(text)
    if kind in _EXPORT:
        return f"is a {kind}, which pip cannot read: name what {_EXPORT[kind]} writes"
    if PurePath(name).suffix in (".yml", ".yaml") or kind == "conda":
        return (
            "is an environment of conda, which pip cannot read: put its pip packages into a "
            "requirements file, `setup.python` and `setup.tensorflow` are the rest"
        )
    if name in ("setup.py", "setup.cfg"):
        return "describes a package: `setup.install: .` installs it with what it requires"
    if "\0" in text:
        return "is no text, or UTF-16 without a byte order mark: save it as UTF-8"
    return None


def _by_content(text: str) -> str:
    if re.search(r"^\[\[source\]\]|^\[(?:dev-)?packages\]", text, re.MULTILINE):
        return "Pipfile"
    if re.match(r'\s*\{\s*"_meta"', text):
        return "Pipfile.lock"
    if re.search(r"^\[\[package\]\]", text, re.MULTILINE):
        return "poetry.lock" if "poetry" in text.lower() else "uv.lock"
    if re.search(r"^(?:channels|dependencies):\s*$|^@EXPLICIT$", text, re.MULTILINE):
        return "conda"
    return ""


# ── lines ────────────────────────────────────────────────────────────────────

_OPTIONS = frozenset(
    (
        *("-r", "--requirement", "-c", "--constraint", "-e", "--editable", "-i", "--index-url"),
        *("--pypi-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--no-binary"),
        *("--only-binary", "--prefer-binary", "--require-hashes", "--pre", "--trusted-host"),
        *("--use-feature", "--global-option", "--hash", "--config-settings", "--all-releases"),
        *("--only-final", "--uploaded-prior-to"),
    )
)
"""https://pip.pypa.io/en/stable/reference/requirements-file-format/#supported-options"""

_SPEC = r"(?:===?|~=|!=|<=|>=|<|>)\s*[\w.*+!-]+"
_NAMED = re.compile(
    r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?\s*(?:\[[\w\s,.-]*\])?\s*"
    rf"(?:\(\s*{_SPEC}(?:\s*,\s*{_SPEC})*\s*\)|{_SPEC}(?:\s*,\s*{_SPEC})*\s*,?|@\s*\S+)?\s*(?:;.*)?",
    re.ASCII,
)
"""https://packaging.python.org/en/latest/specifications/dependency-specifiers/"""

_OF_WINDOWS = "exists for Windows alone"
_OF_MACS = "exists for macOS alone"
_OTHERS = {
    "pywin32": _OF_WINDOWS,
    "pypiwin32": _OF_WINDOWS,
    "pywinpty": _OF_WINDOWS,
    "tensorflow-intel": "is Windows's part of TensorFlow, which `setup.tensorflow` installs",
    "tensorflow-macos": "is TensorFlow for macOS, which `setup.tensorflow` installs for the nodes",
    "tensorflow-metal": _OF_MACS,
    "pyobjc-core": _OF_MACS,
    "python": "is no package: set `setup.python`",
    "sklearn": "is no longer on the index: write scikit-learn",
}
"""Packages that have no file for Linux (pypi.org, read 2026-11-26)."""


def _line(line: str, config: ClusterConfig, *, of_code: bool) -> str | None:
    """Reason for which pip could not install a line on a node; None if nothing is certain."""
    if not line or other_file(line) is not None or "${" in line:  # pip fills in variables
        return None
    word = line.split("=", 1)[0].split()[0] if line.startswith("-") else line.split()[0]
    if line.startswith("-"):
        return _option(word, line, config, of_code=of_code)
    bare = re.split(r"\s--[a-z]", line)[0].strip()
    if re.match(r"(?:pip3?|python3? -m pip) install\b", bare):
        return "is a command: write the packages alone, one in each line"
    if re.match(r"(?:import|from)\s+\w", bare):
        return "is Python: write the packages that it needs, one in each line"
    local = re.search(r"@\s*file:/*(/[^\s;]*)", bare)
    if local is not None and (is_cloud(config.provider) or _is_missing(local[1], config)):
        name = package(bare.split("@")[0])
        return (
            "is a path of the machine that wrote it, as conda's `pip freeze` has them: write "
            f"{name}, or what `pip list --format=freeze` says"
        )
    if local is not None:
        return None
    if LOCAL.match(bare):
        return None if of_code or not _is_missing(bare, config) else _ON_THIS_MACHINE
    name = package(bare)
    marked = ";" in bare
    own = _OTHERS.get(name)
    if own is not None and not marked:
        return f"{own}: remove the line" if own in (_OF_WINDOWS, _OF_MACS) else own
    version = config.setup.tensorflow if of_code and not marked else None
    if version is not None and (
        name in requirements.TENSORFLOW and requirements.excludes(bare, version)
    ):
        return f'contradicts `setup.tensorflow: "{version}"`, which is what the nodes have'
    if _NAMED.fullmatch(bare) or "://" in bare:
        return None
    return _unreadable(bare)


_ON_THIS_MACHINE = (
    "names a folder or file of this machine, which no node has: `setup.install: .` installs the "
    "delivered code, or a folder of it"
)


def _option(word: str, line: str, config: ClusterConfig, *, of_code: bool) -> str | None:
    value = line[len(word) :].strip("= \t\"'")
    short = word[:2] if re.match(r"-[recif]\S", word) else word
    if short not in _OPTIONS:
        return "is no option that pip knows in a requirements file"
    path = line[2:].strip() if short != word else value
    if short in ("-e", "--editable", "-f", "--find-links") and "://" not in path and not of_code:
        return _ON_THIS_MACHINE if _is_missing(path, config) else None
    return None


def _is_missing(path: str, config: ClusterConfig) -> bool:
    """True if no node has the path: pip starts in a folder of its own there. An absolute one may be
    in an image or on a host of the user's."""
    place = Path(re.split(r"[\s;\[]", path.removeprefix("file://"))[0])
    if not place.is_absolute():
        return True
    if facts_of(config.provider).on_this_machine:
        return not place.exists()
    return place.exists() if is_cloud(config.provider) else _CONDAS.search(path) is not None


_CONDAS = re.compile(r"/croot/|/feedstock_root/|/conda|_work\b|/tmp/build/|/tmp/abs_")
"""In paths that conda's `pip freeze` writes: github.com/conda/conda/issues/10678."""


def _unreadable(line: str) -> str:
    single = re.fullmatch(r"([\w.-]+(?:\[[\w,]*\])?)\s*=\s*([\w.]+)(=\w+)?", line)
    if single and single[3]:
        return f"is a line of conda's: write {single[1]}=={single[2]}"
    if single:
        return f"has one `=`: write {single[1]}=={single[2]}"
    words = re.split(r"[\s,]+", line)
    if len(words) > 1 and all(_NAMED.fullmatch(each) for each in words):
        return "has several packages: write each in a line of its own"
    return "is no requirement that pip can read, such as NAME or NAME==VERSION"
