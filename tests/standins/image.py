"""What an image has so that playbooks work on nodes without a network: an archive, a package."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.standins.nodes import ARCHIVE, UV_PLACE

MODULES = 400
WHEELS = "srv/wheels"


def with_archive(image: Path) -> None:
    """apt reads what the nodes' tree has in its own archive, and nothing else."""
    _put(image / "etc/apt/sources.list", f"deb [trusted=yes] file:/{ARCHIVE} ./\n")


def with_package(image: Path) -> None:
    """pip has one package, `many`; `many.all_of_it()` imports its modules and tells how many."""
    _put(image / "etc/pip.conf", f"[global]\nno-index = true\nfind-links = /{WHEELS}\n")
    files = {f"many/part{number}.py": f"value = {number}\n" for number in range(MODULES)}
    files["many/__init__.py"] = _ALL
    info = "many-1.0.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: many\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    wheel = image / WHEELS / "many-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)


def with_noted_uv(image: Path, log: str) -> None:
    """uv also appends what it says to the file `log` on the node."""
    text = f'/{UV_PLACE} "$@" >/tmp/said.$$ 2>&1\ncode=$?\ntee -a {log} </tmp/said.$$\nexit $code\n'
    _put(image / "usr/local/bin/uv", f"#!/bin/sh\n{text}")
    (image / "usr/local/bin/uv").chmod(0o755)


_ALL = f"""\
import importlib


def all_of_it():
    found = [importlib.import_module(f"many.part{{n}}").value for n in range({MODULES})]
    assert found == list(range({MODULES}))
    return len(found)
"""


def _put(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
