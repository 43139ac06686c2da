"""Reads what a folder of code says of its needs: setup.py's requirements and a Dockerfile.

Nothing is run: setup.py is parsed (`ast`), a Dockerfile read line by line
(https://docs.docker.com/reference/dockerfile/).
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloudtrain.importers import shell_words
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.values import Value

_TENSORFLOW = re.compile(r"tensorflow(-cpu|-gpu|_cpu|_gpu)?(\[[^\]]*\])?\s*(==\s*(?P<at>[\d.]+))?")
_IMAGES = (
    re.compile(r"(?:^|/)tensorflow/tensorflow:(\d+\.\d+(?:\.\d+)?)"),
    re.compile(r"/tf2?-(?:cpu|gpu)\.(\d+-\d+)"),
)


def tensorflow_of(image: str) -> str | None:
    """TensorFlow's version by an image's name: Docker Hub's `tensorflow/tensorflow:2.3.1-gpu`, or
    the prebuilt `…/training/tf-cpu.2-11:latest`
    (https://cloud.google.com/vertex-ai/docs/training/pre-built-containers)."""
    for pattern in _IMAGES:
        if found := pattern.search(image):
            return found[1].replace("-", ".")
    return None


def put_image(draft: Draft, image: Value) -> None:
    """TensorFlow's version from an image; any other image is reported."""
    version = tensorflow_of(image.text)
    if version is None:
        draft.lose(
            image,
            f"the image {image.text} is not used: nodes run no containers;"
            " list what it installs under `setup:`",
        )
    elif not draft.has("setup", "tensorflow"):
        draft.put("setup.tensorflow", version, image)


def add_packages(draft: Draft, names: list[str], origin: Value) -> None:
    """Add pip requirements to setup.packages; TensorFlow itself is setup.tensorflow."""
    packages: list[str] = list(draft.get("setup.packages") or [])
    for name in names:
        found = _TENSORFLOW.match(name)
        after = name[found.end() :].strip() if found else "x"
        if found and (not after or after[0] in "<>=!~;,"):
            if found["at"] and not draft.has("setup", "tensorflow"):
                draft.put("setup.tensorflow", found["at"].rstrip("."), origin)
        elif name not in packages:
            packages.append(name)
    if packages:
        draft.put("setup.packages", packages, origin)


# ── setup.py ─────────────────────────────────────────────────────────────────


def put_setup_py(draft: Draft, folder: Path) -> None:
    """Add the `install_requires` of the folder's setup.py, as AI Platform installs them."""
    path = folder / "setup.py"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        where = Value(text="", file=str(path), line=None, field="setup.py")
        draft.lose(where, f"cannot be read ({type(error).__name__}): list its packages in `setup:`")
        return
    for keyword in _setup_keywords(tree):
        origin = Value(
            text="",
            file=str(path),
            line=keyword.value.lineno,
            field=keyword.arg or "",
        )
        if keyword.arg == "install_requires":
            names = _strings(tree, keyword.value)
            if names is None:
                draft.lose(origin, "is computed: list the packages under setup.packages")
            else:
                add_packages(draft, names, origin)
        elif keyword.arg in ("ext_modules", "scripts", "entry_points", "dependency_links"):
            draft.lose(origin, "the package is not installed: its code runs from its folder")


def _setup_keywords(tree: ast.Module) -> Iterator[ast.keyword]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "setup":
            yield from node.keywords


def _strings(tree: ast.Module, node: ast.expr) -> list[str] | None:
    """A list of string constants, or of a name that is assigned one; None if it is computed."""
    if isinstance(node, ast.Name):
        for found in tree.body:
            if isinstance(found, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == node.id for target in found.targets
            ):
                return None if isinstance(found.value, ast.Name) else _strings(tree, found.value)
        return None
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    values = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
    texts = [value for value in values if isinstance(value, str)]
    return texts if len(texts) == len(values) else None


# ── Dockerfile ───────────────────────────────────────────────────────────────


@dataclass
class Dockerfile:
    """What a Dockerfile says of the program; its setup goes to the draft at once."""

    folder: str = ""
    """WORKDIR."""
    copied: tuple[tuple[str, str], ...] = ()
    """COPY's source and target."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def read_dockerfile(draft: Draft, path: Path) -> Dockerfile | None:
    """Map FROM, pip, apt-get, ENV and WORKDIR; report the other instructions. None if there is no
    such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = Dockerfile()
    for line, name, rest in _instructions(text):
        _instruction(draft, found, Value(text=rest, file=str(path), line=line, field=name))
    return found


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, upper-case name and arguments of each instruction."""
    whole, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not whole):
            continue
        start = start or number
        whole += line.rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        name, _, rest = whole.strip().partition(" ")
        yield start, name.upper(), rest.strip()
        whole, start = "", 0


def _instruction(draft: Draft, found: Dockerfile, value: Value) -> None:
    if value.field == "FROM":
        image = value.text.split(" ")[0]
        put_image(draft, Value(text=image, file=value.file, line=value.line, field="FROM"))
    elif value.field == "WORKDIR":
        found.folder = value.text.strip("\"'")
    elif value.field in ("COPY", "ADD"):
        words = [word for word in _words(value.text) if not word.startswith("--")]
        found.copied += tuple((source, words[-1]) for source in words[:-1])
    elif value.field == "RUN":
        for line in re.split(r"\s*&&\s*", value.text):
            _run(draft, value, line)
    elif value.field == "ENV":
        _environment(draft, value)
    elif value.field == "ENTRYPOINT":
        found.entrypoint = _exec_form(value.text)
    elif value.field == "CMD":
        found.command = _exec_form(value.text)
    elif value.field not in ("LABEL", "MAINTAINER", "EXPOSE", "USER", "SHELL", "ARG"):
        draft.lose(value, f"not mapped: {value.text}")


def _run(draft: Draft, value: Value, line: str) -> None:
    words = _words(line)
    while words[:1] == ["sudo"]:
        words = words[1:]
    if re.fullmatch(r"python[\d.]*", (words or [""])[0]) and words[1:2] == ["-m"]:
        words = words[2:]
    if re.fullmatch(r"pip[\d.]*", (words or [""])[0]) and words[1:2] == ["install"]:
        _pip(draft, value, words[2:])
    elif words[:1] == ["apt-get"] or words[:1] == ["apt"]:
        lines: list[str] = list(draft.get("setup.run") or [])
        line = "sudo " + shell_words.shell_line(words)
        draft.put("setup.run", [*lines, line], value)
    elif words and words[:1] != ["rm"]:
        draft.lose(value, f"not mapped: {line}: add it to setup.run if the nodes need it")


def _pip(draft: Draft, value: Value, words: list[str]) -> None:
    names: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in ("-r", "--requirement"):
            file = posixpath.normpath(next(rest, "")).lstrip("/")
            draft.put("setup.requirements", shell_words.literal(f"code:{file}"), value)
        elif word in ("-e", "--editable"):
            continue
        elif word == ".":
            draft.put("setup.install", ["."], value)
        elif word in ("-U", "-q") or word.startswith("--no-") or word in ("--upgrade", "--quiet"):
            continue
        elif word.startswith("-"):
            draft.lose(value, f"pip's option {word} is not mapped")
        else:
            names.append(word)
    add_packages(draft, [name for name in names if name not in ("pip", "setuptools")], value)


def _environment(draft: Draft, value: Value) -> None:
    words = _words(value.text)
    if words and "=" not in words[0]:
        words = [f"{words[0]}={' '.join(words[1:])}"]
    for word in words:
        name, _, text = word.partition("=")
        if not draft.has("train", "env", name):
            draft.put(("train", "env", name), shell_words.literal(shell_words.plain(text)), value)


def _exec_form(text: str) -> tuple[str, ...]:
    """ENTRYPOINT's or CMD's words: a JSON list, or a shell's line."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, list) and all(isinstance(word, str) for word in found):
        return tuple(shell_words.clean(word) for word in found)
    return ("/bin/sh", "-c", text)


def _words(text: str) -> list[str]:
    try:
        return shell_words.words(text)
    except ValueError:
        return shell_words.clean(text).split()
