"""Agents with the rights that real kinds of stores give, against their stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.artifacts.manifest import Manifest, read_manifest
from cloudtrain.artifacts.spool import ingest_spools
from cloudtrain.artifacts.spool_archive import pending_spools
from cloudtrain.stores import open_store
from cloudtrain.stores.presign import gs
from tests.standins.stores import KINDS, Store
from tests.support.agent_parts import Kept
from tests.support.landing_parts import RUN
from tests.support.web_store import service, until


@pytest.fixture(scope="module", params=sorted(KINDS))
def place(request: pytest.FixtureRequest) -> Iterator[Store]:
    with KINDS[request.param]() as store:
        yield store


@pytest.fixture
def kept(tmp_path: Path, place: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    with service() as told:
        one = Kept(tmp_path, told, monkeypatch)
        one.web = open_store(f"{place.uri}/{tmp_path.name}")  # type: ignore[assignment]
        yield one
        one.power_off()


def test_what_a_task_left_is_in_the_store_and_is_taken_from_there(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gs, "CHUNK", 8 << 20)
    kept.checkpoints = "ckpt"
    kept.write("chief0", "output/ö odd", b"a" * 20_000_001)
    kept.write("chief0", "ckpt/checkpoint", "ckpt-1")
    kept.start("echo trained")
    kept.keep()
    until(lambda: pending_spools(RUN, kept.web))
    kept.power_off()
    ingest_spools(kept.run, kept.web, kept.console)
    manifest = read_manifest(kept.web, RUN) or Manifest(run=RUN)
    assert kept.content(manifest, "chief0/output/ö odd") == b"a" * 20_000_001
    assert kept.content(manifest, "logs/chief0.attempt-1.log") == b"trained\n"
    assert manifest.checkpoint is not None
    assert pending_spools(RUN, kept.web) == []
