"""An INI [cluster] becomes `hosts`, or local nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.core.errors import ConfigError
from tests.support.import_parts import Desk, lost, tree


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_machines_become_hosts_with_the_files_port(desk: Desk) -> None:
    ini = "[cluster]\nps=\nworker=w-0:8900,w-1:8900\nchief=10.0.0.4:8900\n"
    found = desk.imported(ini, file="farm.ini")
    assert tree(found)["hosts"] == [
        {"address": "10.0.0.4", "role": "chief"},
        {"address": "w-0", "role": "worker"},
        {"address": "w-1", "role": "worker"},
    ]
    assert (found.config.name, found.config.train.port) == ("farm", 8900)
    assert found.config.strategy == "multi_worker_mirrored"
    assert lost(found) == []


def test_a_ps_makes_it_a_parameter_server_job(desk: Desk) -> None:
    found = desk.imported("[cluster]\nchief=a:1234\nworker=b:1234\nps=c:1234\n", file="c.ini")
    assert found.config.strategy == "parameter_server"


def test_localhost_is_local_nodes(desk: Desk) -> None:
    found = desk.imported(
        "[cluster]\nchief=localhost:2222\nworker=127.0.0.1:2223, [::1]:2224\n", file="c.ini"
    )
    assert tree(found)["nodes"] == {"chief": {"count": 1}, "worker": {"count": 2}}
    assert found.config.provider == "local"


def test_different_ports_and_other_sections_are_named_at_their_lines(desk: Desk) -> None:
    found = desk.imported(
        "[train]\nsteps=3\n[cluster]\nchief=a:8900\nworker=b:8901\n", file="c.ini"
    )
    assert found.config.train.port == 8900
    assert lost(found) == [
        "c.ini:1: [train]: not mapped",
        "c.ini:3: cluster: has different ports (8900, 8901): train.port is one for all tasks",
    ]


def test_master_is_chief_and_named(desk: Desk) -> None:
    found = desk.imported("[cluster]\nmaster=a:8900\nworker=b:8900\n", file="c.ini")
    assert [host.role for host in found.config.hosts] == ["worker", "chief"]
    assert lost(found)[0].startswith("c.ini:2: master: is `chief` here")


def test_another_provider_gets_as_many_nodes(desk: Desk) -> None:
    ini = "[cluster]\nchief=a:8900\nworker=b:8900,c:8900\n"
    found = desk.imported(ini, file="c.ini", provider="gcp")
    assert {role: group.count for role, group in found.config.nodes.items()} == {
        "chief": 1,
        "worker": 2,
    }


@pytest.mark.parametrize("ini", ["[cluster]\n", "[cluster]\nchief=a b:x\n", "[cluster]\nx\n  y=1"])
def test_a_file_that_hosts_would_refuse_is_refused(desk: Desk, ini: str) -> None:
    with pytest.raises(ConfigError, match=r"c\.ini"):
        desk.imported(ini, file="c.ini")


def test_a_placeholder_that_is_refused_ends_the_import(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    with pytest.raises(ConfigError, match=r"artifacts\.store: .*HOME"):
        desk.imported("[cluster]\nchief=localhost:2222\n", file="c.ini")
