"""The package index of tests and measurements: what pip asks of it, told apart by node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.package_index import PackageIndex, Request, package_index
from tests.support.wheels import wheel


def install(index: PackageIndex, node: str, folder: Path, *packages: str) -> None:
    options = ["--isolated", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    options += ["--index-url", index.url(node), "--target", str(folder / node)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *packages],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        check=True,
    )


def test_an_index_counts_who_asked_for_which_package(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "one", "1.0", "two_parts>=2")
    wheel(tmp_path / "wheels", "two_parts", "1.0")
    wheel(tmp_path / "wheels", "two_parts", "2.0")
    with package_index(tmp_path / "wheels", tmp_path / "log") as index:
        for node in ("chief0", "worker0"):
            install(index, node, tmp_path, "one")
        told = index.requests()
        assert told[:4] == [
            Request(node="chief0", kind="page", package="one"),
            Request(node="chief0", kind="file", package="one"),
            Request(node="chief0", kind="page", package="two-parts"),
            Request(node="chief0", kind="file", package="two-parts"),
        ]
        assert [(each.kind, each.package) for each in told[:4]] == [
            (each.kind, each.package) for each in told[4:]
        ]
        assert {each.node for each in told[4:]} == {"worker0"}
        assert (index.most("page"), index.most("file")) == (2, 2)
        index.forget()
        assert index.requests() == []
    assert (tmp_path / "worker0" / "two_parts.py").read_text().count("'2.0'") == 1
