"""The command and environment of a task, as values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.cluster.plan import deciding_tasks, make_plan, start_order, tasks
from cloudtrain.cluster.task_launch import LaunchInputs, fill, path_prefix, task_launch
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig, Network, NodeGroup, Train
from cloudtrain.core.run_record import Run


def config(**fields: Any) -> ClusterConfig:
    values: dict[str, Any] = {
        "name": "mnist",
        "provider": "local",
        "strategy": "multi_worker_mirrored",
        "nodes": {"worker": NodeGroup(count=2), "chief": NodeGroup()},
        "train": Train(command="python train.py --out {output} --as {role}:{index}"),
        **fields,
    }
    return ClusterConfig(**values)


def run_of(config: ClusterConfig) -> Run:
    return Run(
        id="r1",
        cluster=config.name,
        command=config.train.command,
        tasks=tasks(make_plan(config)),
        state="starting",
        created=0.0,
    )


def inputs(config: ClusterConfig, **fields: Any) -> LaunchInputs:
    names = [node.name for node in make_plan(config).nodes]
    return LaunchInputs(
        addresses={name: f"10.0.0.{number}" for number, name in enumerate(names)},
        work={name: f"/home/u/{name}" for name in names},
        **fields,
    )


def test_nodes_are_named_by_role_and_index_in_tensorflows_order() -> None:
    names = [node.name for node in make_plan(config()).nodes]
    assert names == ["mnist-chief0", "mnist-worker0", "mnist-worker1"]


def test_tasks_that_share_a_machine_have_ports_of_their_own() -> None:
    assert [node.port for node in make_plan(config()).nodes] == [8900, 8901, 8902]
    assert {node.port for node in make_plan(config(provider="gcp")).nodes} == {8900}


def test_a_strategy_of_a_later_version_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(UsageError, match="quantum is not supported"):
        make_plan(config(strategy="quantum"))


@pytest.mark.parametrize(
    ("machine", "count", "env", "wanted"),
    [
        ("Standard_ND96isr_H100_v5", 1, {}, "1"),
        ("Standard_ND96asr_v4", 1, {"NCCL_IB_DISABLE": "0"}, "0"),
        ("Standard_NC4as_T4_v3", 1, {}, None),
        ("Standard_ND96isr_H100_v5", 0, {}, None),
    ],
)
def test_infiniband_that_is_not_connected_is_not_tried(
    machine: str, count: int, env: dict[str, str], wanted: str | None
) -> None:
    """Azure connects it within a scale set alone; the user's own word counts."""
    group = NodeGroup(machine=machine)
    nodes = {"chief": group, **({"worker": group} if count else {})}
    made = config(provider="azure", nodes=nodes, train=Train(command="x", env=env))
    run = run_of(made)
    environment = task_launch(make_plan(made), run, run.tasks[0], inputs(made)).environment
    assert environment.get("NCCL_IB_DISABLE") == wanted


@pytest.mark.parametrize(
    ("provider", "machine", "workers", "address", "wanted"),
    [
        ("gcp", "g2-standard-4", 1, "10.0.0.7", "10.0.0.7"),
        ("gcp", "g2-standard-4", 0, "10.0.0.7", None),
        ("gcp", "n2-standard-4", 1, "10.0.0.7", None),
        ("gcp", "g2-standard-4", 1, "node-7.internal", None),
        ("aws", "g5.xlarge", 1, "fd00::7", "fd00::7"),
    ],
)
def test_nccl_gets_the_interface_of_the_nodes_address_where_gpus_talk_between_nodes(
    provider: str, machine: str, workers: int, address: str, wanted: str | None
) -> None:
    group = NodeGroup(machine=machine)
    made = config(
        provider=provider, nodes={"chief": group, **({"worker": group} if workers else {})}
    )
    run = run_of(made)
    asked = replace(inputs(made), addresses=dict.fromkeys(inputs(made).addresses, address))
    assert task_launch(make_plan(made), run, run.tasks[0], asked).nccl_address == wanted


def test_placeholders_are_filled_and_other_braces_stay() -> None:
    made = task_launch(
        make_plan(config()), run_of(config()), run_of(config()).tasks[2], inputs(config())
    )
    assert made.command == "python train.py --out /home/u/mnist-worker1/output --as worker:1"
    assert fill("{output} {x} {} {OUTPUT}", {"output": "{role}", "role": "r"}) == (
        "{role} {x} {} {OUTPUT}"
    )


def test_a_work_folder_with_a_space_stays_one_word() -> None:
    given = inputs(config())
    spaced = LaunchInputs(addresses=given.addresses, work=dict.fromkeys(given.work, "/home/a b"))
    made = task_launch(make_plan(config()), run_of(config()), run_of(config()).tasks[0], spaced)
    assert "--out '/home/a b/output' --as" in made.command
    assert made.environment["CLOUDTRAIN_OUTPUT"] == "/home/a b/output"


def test_tf_config_names_the_same_cluster_for_all_and_each_its_own_task() -> None:
    run = run_of(config())
    made = [task_launch(make_plan(config()), run, task, inputs(config())) for task in run.tasks]
    seen = [json.loads(str(one.environment["TF_CONFIG"])) for one in made]
    assert [one["task"] for one in seen] == [
        {"type": "chief", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]
    assert seen[0]["cluster"] == {
        "chief": ["10.0.0.0:8900"],
        "worker": ["10.0.0.1:8901", "10.0.0.2:8902"],
    }
    assert seen[0]["cluster"] == seen[1]["cluster"] == seen[2]["cluster"]


def test_the_environments_python_comes_first_also_below_the_home_there() -> None:
    assert path_prefix("/c/v/bin") == 'export PATH=/c/v/bin:"$PATH" VIRTUAL_ENV=/c/v\n'
    assert path_prefix(".cache/v 1/bin") == (
        'export PATH="$HOME"/\'.cache/v 1/bin\':"$PATH" VIRTUAL_ENV="$HOME"/\'.cache/v 1\'\n'
    )
    assert path_prefix(None) == ""


def test_who_decides_is_the_chief_or_who_stands_for_it() -> None:
    run = run_of(config())
    assert deciding_tasks(run.tasks, config()) == {"chief0"}
    workers = config(nodes={"worker": NodeGroup(count=2)})
    assert deciding_tasks(run_of(workers).tasks, workers) == {"worker0"}
    all_workers = config(train=Train(command="x", success="all_workers"))
    assert deciding_tasks(run.tasks, all_workers) == {"chief0", "worker0", "worker1"}
    custom = config(strategy="custom", nodes={"a": NodeGroup(count=2)})
    assert deciding_tasks(run_of(custom).tasks, custom) == {"a0", "a1"}
    horovod = config(strategy="horovod", nodes={"worker": NodeGroup(count=2)})
    assert deciding_tasks(run_of(horovod).tasks, horovod) == {"worker0", "worker1"}


def test_parameter_servers_start_first_and_the_evaluator_last() -> None:
    roles = ("chief", "worker", "ps", "evaluator")
    job = config(strategy="parameter_server", nodes={role: NodeGroup() for role in roles})
    assert [t.role for t in start_order(run_of(job).tasks)] == [
        "ps",
        "chief",
        "worker",
        "evaluator",
    ]


@given(st.text(), st.dictionaries(st.sampled_from(["output", "role", "run"]), st.text()))
def test_filling_never_fails_and_leaves_text_without_placeholders_alone(
    text: str, values: dict[str, str]
) -> None:
    filled = fill(text, values)
    if not any(f"{{{name}}}" in text for name in values):
        assert filled == text


def test_tasks_behind_a_proxy_reach_each_other_without_it() -> None:
    """gRPC reads these variables, too."""
    network = Network(http_proxy="http://proxy:3128", no_proxy=(".office.example",))
    env = {"HTTPS_PROXY": "http://other:1"}
    asked = config(provider="gcp", network=network, train=Train(command="python x.py", env=env))
    run = run_of(asked)
    launch = task_launch(make_plan(asked), run, run.tasks[0], inputs(asked))
    direct = str(launch.environment["no_proxy"]).split(",")
    assert {"10.0.0.0", "10.0.0.1", "10.0.0.2", ".office.example", "169.254.169.254"} <= {*direct}
    assert launch.environment["NO_PROXY"] == launch.environment["no_proxy"]
    assert launch.environment["https_proxy"] == "http://proxy:3128"
    assert launch.environment["HTTPS_PROXY"] == "http://other:1", "the user's own word counts"
    plain = config(provider="gcp")
    without = task_launch(make_plan(plain), run_of(plain), run.tasks[0], inputs(plain))
    assert not [name for name in without.environment if "proxy" in name.lower()]
