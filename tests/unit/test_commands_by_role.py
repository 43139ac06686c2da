"""A command for each role, and placeholders that name the tasks of one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.checks.commands import LONGEST, launched
from cloudtrain.checks.notes import script_notes
from cloudtrain.cli.plan import as_document
from cloudtrain.cluster.plan import deciding_tasks, make_plan, tasks
from cloudtrain.commands.plan import plan_report
from cloudtrain.commands.train import with_arguments
from cloudtrain.config import from_json, load, to_json
from cloudtrain.core.codec import decode
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Train
from cloudtrain.core.run_record import Run
from cloudtrain.core.store_kinds import uris_of
from tests.support.offline_checks_parts import written

PS = {"chief": {}, "worker": {"count": 2}, "ps": {}}
BY_ROLE = {"ps": "python serve.py", "default": "python train.py --as {role}"}


def by_role(folder: Path, lines: Any, nodes: Any = PS, **values: Any) -> ClusterConfig:
    given = {"strategy": "parameter_server", "nodes": nodes, "train": {"command": lines}}
    return written(folder, **{**given, **values})


def refused(folder: Path, lines: Any, nodes: Any = PS, **values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        by_role(folder, lines, nodes, **values)
    return "\n".join(f"{problem.field}: {problem.text}" for problem in caught.value.problems)


def test_each_role_has_its_own_line_and_the_rest_the_default(tmp_path: Path) -> None:
    config = by_role(tmp_path, BY_ROLE)
    assert [config.train.line(role) for role in ("ps", "worker", "chief")] == [
        "python serve.py",
        *["python train.py --as {role}"] * 2,
    ]
    nodes = as_document(plan_report(make_plan(config)))["nodes"]
    assert {node["name"]: node["command"] for node in nodes} == {
        "t-chief0": "python train.py --as chief",
        "t-worker0": "python train.py --as worker",
        "t-worker1": "python train.py --as worker",
        "t-ps0": "python serve.py",
    }


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            {"chief": "a", "worker": "b"},
            "train.command: has no line for ps: add one, or `default`",
        ),
        (
            {"wroker": "a", "default": "b"},
            "train.command.wroker: no node has the role 'wroker': did you mean 'worker'?",
        ),
        (
            {"evaluator": "a", "default": "b"},
            "train.command.evaluator: no node has the role 'evaluator': the roles are",
        ),
        ({"ps": "", "default": "b"}, "train.command.ps: is empty"),
        ({"ps": ["a"], "default": "b"}, "train.command.ps: must be a single value"),
        (["a"], "train.command: must be a shell line, or a mapping of them by role"),
        ("", "train.command: is empty"),
        (
            "python x.py --ps {pss.hosts}",
            "train.command: names {pss.hosts}, but no node has the role 'pss': did you mean 'ps'?",
        ),
        (
            {"worker": "x {evaluator.hosts}", "default": "b"},
            "train.command.worker: names {evaluator.hosts}, but no node has the role 'evaluator'",
        ),
        ({"worker": "x {data.digits}", "default": "b"}, "train.command.worker: names {data.dig"),
    ],
)
def test_what_is_wrong_with_them_is_named(tmp_path: Path, lines: Any, problem: str) -> None:
    assert problem in refused(tmp_path, lines)


def test_a_problem_has_the_line_of_its_role(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "provider: local\nstrategy: custom\nnodes: {reader: , trainer: }\n"
        "train:\n  command:\n    reader: a {x.hosts}\n    trianer: b\n  env: {PEERS: '{y.hosts}'}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "c.yaml", {})
    assert [(found.line, found.field) for found in caught.value.problems] == [
        (5, "train.command"),
        (6, "train.command.reader"),
        (7, "train.command.trianer"),
        (8, "train.env.PEERS"),
    ]


# ── placeholders ─────────────────────────────────────────────────────────────


def test_hosts_of_a_role_have_addresses_and_ports_in_tf_configs_order(tmp_path: Path) -> None:
    line = "python x.py --ps_hosts={ps.hosts} --worker_hosts={worker.hosts} {role}/{index}"
    env = {"PEERS": "{chief.hosts},{worker.hosts} {nothing.hosts.here} {x}"}
    config = by_role(tmp_path, line, train={"command": line, "env": env})
    (chief, worker, *_) = launched(make_plan(config))
    tf_config = json.loads(str(chief.environment["TF_CONFIG"]))["cluster"]
    assert chief.environment["PEERS"] == (
        f"{tf_config['chief'][0]},{','.join(tf_config['worker'])} {{nothing.hosts.here}} {{x}}"
    )
    hosts = ",".join(tf_config["worker"])
    assert worker.command == (
        f"python x.py --ps_hosts='{tf_config['ps'][0]}' --worker_hosts='{hosts}' worker/0"
    )


# ── the run's record ─────────────────────────────────────────────────────────


def test_words_after_the_dashes_are_added_to_each_line() -> None:
    train = Train(command="a", commands={"ps": "b"})
    assert with_arguments(train, ["--x", "y z"]) == ("a --x 'y z'", {"ps": "b --x 'y z'"})
    assert with_arguments(Train(commands={"ps": "b"}), ["c"]) == ("", {"ps": "b c"})
    with pytest.raises(UsageError, match="no node can start it"):
        with_arguments(train, ["x" * LONGEST])


def test_a_record_holds_them_and_one_of_before_has_one_line(tmp_path: Path) -> None:
    config = by_role(tmp_path, BY_ROLE)
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    run = Run(
        id="r1",
        cluster="t",
        command=config.train.command,
        commands=config.train.commands,
        tasks=tasks(make_plan(config)),
        state="starting",
        created=0.0,
    )
    record = json.loads(json.dumps(asdict(run)))
    assert decode(Run, record).line("ps") == "python serve.py"
    del record["commands"]
    assert decode(Run, record).line("ps") == "python train.py --as {role}"
    assert isinstance(record["command"], str)


# ── master ───────────────────────────────────────────────────────────────────

MASTER = {"master": {}, "worker": {}, "ps": {}}


def test_a_master_is_for_custom_alone(tmp_path: Path) -> None:
    assert "use 'chief' (`strategy: custom` allows it" in refused(tmp_path, "a", MASTER)
    config = by_role(
        tmp_path,
        "a",
        MASTER,
        strategy="custom",
        train={"command": "a", "tf_config": True, "success": "chief"},
    )
    plan = make_plan(config)
    assert [node.task for node in plan.nodes] == ["master0", "worker0", "ps0"]
    (master, *_) = launched(plan)
    text = json.loads(str(master.environment["TF_CONFIG"]))
    assert list(text["cluster"]) == ["master", "worker", "ps"]
    assert text["task"] == {"type": "master", "index": 0}
    assert deciding_tasks(tasks(plan), config) == {"master0"}


@pytest.mark.parametrize("other", ["chief", "evaluator"])
def test_estimator_takes_no_master_next_to_a_chief_or_an_evaluator(
    tmp_path: Path, other: str
) -> None:
    nodes = {**MASTER, other: {}}
    train = {"command": "a", "tf_config": True}
    assert f"nodes.{other}: not next to a master" in refused(
        tmp_path, "a", nodes, strategy="custom", train=train
    )
    assert by_role(tmp_path, "a", nodes, strategy="custom").nodes[other].count == 1


def test_a_buckets_uri_is_found_in_a_roles_line(tmp_path: Path) -> None:
    config = by_role(tmp_path, {"ps": "x gs://b/a", "default": "y s3://b/c"})
    assert [(uri.field, uri.uri) for uri in uris_of(config)] == [
        ("train.command", "s3://b/c"),
        ("train.command.ps", "gs://b/a"),
    ]


# ── the scripts ──────────────────────────────────────────────────────────────


def test_each_roles_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\nimport tensorflow as tf\np = argparse.ArgumentParser()\n"
        "p.add_argument('--epochs')\np.parse_args()\ntf.distribute.ParameterServerStrategy(r)\n"
    )
    (tmp_path / "score.py").write_text("import tensorflow as tf\ntf.distribute.OneDeviceStrategy()")
    lines = {"chief": "python train.py --epcohs 3", "evaluator": "python scor.py"}
    nodes = {**PS, "evaluator": {}}
    rest = {"code": {"path": "."}}
    found = script_notes(by_role(tmp_path, {**lines, "default": "python train.py"}, nodes, **rest))
    assert len(found) == 2
    assert found[0].startswith("train.command.chief: unknown argument --epcohs: did you mean")
    assert found[1].startswith("train.command.evaluator: scor.py does not exist in")
    lines = {"evaluator": "python score.py", "default": "python train.py"}
    assert script_notes(by_role(tmp_path, lines, nodes, **rest)) == ()
