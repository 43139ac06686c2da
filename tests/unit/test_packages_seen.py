"""The lock of a run: what node/packages.py reads of an environment's folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.node.packages import installed

GIT = {"url": "https://e.org/mine", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


@pytest.mark.parametrize(
    ("name", "origin", "line"),
    [
        ("numpy-1.26.4.dist-info", None, "numpy==1.26.4"),
        ("tensorflow_cpu-2.21.0.dist-info", None, "tensorflow-cpu==2.21.0"),
        ("ruamel.yaml-0.18.dist-info", None, "ruamel-yaml==0.18"),
        ("torch-2.0.0+cu118.dist-info", None, "torch==2.0.0+cu118"),
        ("old-1.0-py3.11.egg-info", None, "old==1.0"),
        ("mine-1.0.dist-info", GIT, "mine @ git+https://e.org/mine@abc"),
        ("w-1.dist-info", {"url": "https://e.org/w.whl"}, "w @ https://e.org/w.whl"),
        (
            "mine-1.0.dist-info",
            {**GIT, "subdirectory": "a/b"},
            "mine @ git+https://e.org/mine@abc#subdirectory=a/b",
        ),
        ("signed-1.dist-info", {"url": "https://e.org/w.whl?Signature=x"}, None),
        ("own-1.dist-info", {"url": "file:///home/me/own"}, None),
        ("hid-1.dist-info", {"url": "https://me:pw@e.org/h"}, None),
        ("numpy", None, None),
    ],
)
def test_a_package_is_named_as_pip_names_it(
    tmp_path: Path, name: str, origin: object, line: str | None
) -> None:
    (tmp_path / name).mkdir()
    if origin is not None:
        (tmp_path / name / "direct_url.json").write_text(json.dumps(origin))
    assert installed(["", "/nowhere", str(tmp_path)]) == ([line] if line else [])


def test_the_first_of_a_name_counts_as_for_an_import(tmp_path: Path) -> None:
    for folder, version in (("layer", "2.0"), ("below", "1.0")):
        (tmp_path / folder / f"numpy-{version}.dist-info").mkdir(parents=True)
    assert installed([str(tmp_path / "layer"), str(tmp_path / "below")]) == ["numpy==2.0"]


def test_the_other_names_of_a_layers_tensorflow_are_no_packages(tmp_path: Path) -> None:
    """No index has tensorflow-gpu 2.21, and a run without a layer has not lost it."""
    for name, installer in (("tensorflow_gpu", "cloudtrain"), ("tensorflow", "uv")):
        (tmp_path / f"{name}-2.21.0.dist-info").mkdir()
        (tmp_path / f"{name}-2.21.0.dist-info" / "INSTALLER").write_text(f"{installer}\n")
    assert installed([str(tmp_path)]) == ["tensorflow==2.21.0"]
