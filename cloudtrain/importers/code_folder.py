"""Maps what a job says of the software that its code needs: an image, pip's names, setup.py.

Nothing is run: setup.py is parsed (`ast`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from cloudtrain.core.image_name import SCHEME, image_name
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.source_files import text_of
from cloudtrain.importers.values import Value

_TENSORFLOW = re.compile(r"tensorflow(-cpu|-gpu|_cpu|_gpu)?(\[[^\]]*\])?\s*(==\s*(?P<at>[\d.]+))?")
_PYTHON = re.compile(r"(?:.*/)?python:(3\.\d+)(?:\.\d+)?(?:[-@].*)?")
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
    """Name an image that can be pulled; see `settle_image`. A job has one for all roles."""
    before = draft.entries.get(IMAGE)
    if before is not None and image.field != "FROM":  # the last stage of a Dockerfile counts
        if before.origin is not None and before.origin.text != image.text:
            draft.lose(image, f"the image {image.text} is not used: `setup:` is the same for all")
        return
    try:
        if image.text == "scratch" or _PYTHON.fullmatch(image.text):  # without TensorFlow
            raise ValueError
        image_name(image.text)
    except ValueError:
        _put_guess(draft, image)
    else:
        draft.put(IMAGE, f"{SCHEME}{image.text}", image)


IMAGE = ("setup", "image")


def settle_image(draft: Draft) -> None:
    """Keep the image, if nothing but packages is installed besides. Else its version of TensorFlow
    or Python, as far as its name tells it."""
    entry = draft.entries.get(IMAGE)
    if entry is None or entry.origin is None:
        return
    besides = {IMAGE, ("setup", "packages")}
    if any(path[0] == "setup" and path not in besides for path in draft.entries):
        del draft.entries[IMAGE]
        _put_guess(draft, entry.origin)
    elif version := tensorflow_of(entry.origin.text):
        note = f'in containers; else setup.tensorflow: "{version}"'
        draft.put(IMAGE, entry.value, entry.origin, note)


def _put_guess(draft: Draft, image: Value) -> None:
    """TensorFlow's version from an image, or Python's; any other image is reported."""
    version = tensorflow_of(image.text)
    if python := _PYTHON.fullmatch(image.text):
        draft.put("setup.python", python[1], image)
    elif version is None:
        draft.lose(
            image,
            f"the image {image.text} is not used: `setup:` installs more than it has;"
            " list what it installs there, or build an image with all of it",
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
        tree = ast.parse(text_of(folder, path))
    except FileNotFoundError:
        return
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        where = Value(file=str(path), field="setup.py")
        draft.lose(where, f"cannot be read ({type(error).__name__}): list its packages in `setup:`")
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    setups = [call for call in calls if ast.unparse(call.func).split(".")[-1] == "setup"]
    for keyword in (keyword for call in setups for keyword in call.keywords):
        origin = Value(file=str(path), line=keyword.value.lineno, field=keyword.arg or "")
        if keyword.arg == "install_requires":
            names = _strings(tree, keyword.value)
            if names is None:
                draft.lose(origin, "is computed: list the packages under setup.packages")
            else:
                add_packages(draft, names, origin)
        elif keyword.arg in ("ext_modules", "scripts", "entry_points", "dependency_links"):
            draft.lose(origin, "the package is not installed: its code runs from its folder")


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
