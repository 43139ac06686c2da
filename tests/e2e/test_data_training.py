"""A Keras script of somebody else trains on `data:` as it is."""

from __future__ import annotations

import io
import os
import re
import shutil
import struct
import zipfile

import pytest
import yaml

from cloudtrain.stores import open_store
from tests.standins.stores import KINDS
from tests.support.project import ROOT, Project


def npz(images: bytes, labels: bytes) -> bytes:
    """numpy's archive of `x` (rows of 64 bytes) and `y` (a byte each).

    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data, shape in (("x", images, (len(labels), 64)), ("y", labels, (len(labels),))):
            header = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode()
            header += b" " * (-(len(header) + 11) % 64) + b"\n"
            start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
            archive.writestr(f"{name}.npy", start + header + data)
    return made.getvalue()


@pytest.mark.sweep(0)
@pytest.mark.tensorflow
@pytest.mark.xdist_group("tensorflow")
@pytest.mark.usefixtures("tensorflow_python")
def test_a_keras_script_trains_on_it_unchanged(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KINDS["s3"]() as place:
        project.environment |= place.environment
        for name, value in place.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"{place.uri}/digits")
        for number in range(4):
            labels = bytes(n % 10 for n in range(100))
            store.upload(f"part {number}.npz", [npz(os.urandom(6400), labels)])
        script = ROOT / "tests" / "strangers" / "keras_npz.py"
        (project.code / script.name).write_bytes(script.read_bytes())
        local = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text(encoding="utf-8"))
        config = project.config(
            setup={**local["setup"], "prove": "off"},
            data={"digits": f"{place.uri}/digits"},
            train={
                "command": "echo at {data.digits}; python keras_npz.py --data-dir {data.digits} "
                "--model-dir {output}/m",
                "grace": "5s",
            },
        )
        done = project.cloudtrain("run", config, timeout=200)
    for folder in set(re.findall(r" at (/.*)/files$", done.stdout, re.MULTILINE)):
        shutil.rmtree(folder)  # from the cache of the user who runs the tests
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("read 4 files, 400 images") == 2
    assert "cluster formed after" in done.stderr
    assert list(project.store.glob("*/chief0/output/m/saved_model.pb"))
