"""Whom `plan` and `check` name as able to run code by TensorFlow's open ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain import config as configs
from cloudtrain.checks.check import noted
from cloudtrain.checks.notes import notes
from cloudtrain.cluster.plan import make_plan, open_ports_note
from cloudtrain.core.model import ClusterConfig

HOSTS = """\
name: t
provider: hosts
strategy: {strategy}
hosts:
  - {{address: 192.0.2.11, role: worker, user: me}}
  - {{address: 192.0.2.10, role: chief, user: me}}
train: {{command: python t.py, port: 9000}}
artifacts: {{store: "file:///store"}}
"""
LOCAL = """\
name: t
provider: local
strategy: {strategy}
nodes: {{chief: {{}}, worker: {{}}}}
train: {{command: python t.py}}
"""


def read(folder: Path, text: str, strategy: str = "multi_worker_mirrored") -> ClusterConfig:
    file = folder / "t.yaml"
    file.write_text(text.format(strategy=strategy))
    return configs.load(file)


def test_check_and_plan_name_who_can_run_code_on_hosts(tmp_path: Path) -> None:
    config = read(tmp_path, HOSTS)
    note = open_ports_note(config)
    ports = {node.role: node.port for node in make_plan(config).nodes}
    assert note == (
        f"during a run, everyone who reaches 192.0.2.10:{ports['chief']}, "
        f"192.0.2.11:{ports['worker']} can run code as me: TensorFlow listens on every address "
        "and asks for no password; let only these machines in (docs/hosts.md has a firewall line)"
    )
    assert note in notes(config)
    assert note in [finding.text for finding in noted(config)]


def test_check_says_it_of_local_nodes_and_plan_is_not_longer_for_them(tmp_path: Path) -> None:
    config = read(tmp_path, LOCAL)
    note = open_ports_note(config)
    assert note is not None
    assert "everyone who reaches this machine's ports of TensorFlow" in note
    assert note in [finding.text for finding in noted(config)]
    assert note not in notes(config)


@pytest.mark.parametrize(("text", "strategy"), [(HOSTS, "custom"), (LOCAL, "custom")])
def test_where_tensorflow_serves_nothing_nothing_is_said(
    tmp_path: Path, text: str, strategy: str
) -> None:
    assert open_ports_note(read(tmp_path, text, strategy)) is None
