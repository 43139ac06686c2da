"""TF_CONFIG: every task is told the same cluster and its own place in it."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core.model import ClusterConfig, NodeGroup, Setup, Train
from cloudtrain.core.run_record import Task
from cloudtrain.training.tf_config import tf_config, tf_config_for, wants_tf_config
from tests.support.tf_config_parts import addresses_of, tasks_of


def told(tasks: tuple[Task, ...], me: Task) -> Any:
    text = tf_config(tasks, addresses_of(tasks), me)
    assert text is not None
    return json.loads(text)


def config_of(strategy: str, train: Train | None = None) -> ClusterConfig:
    nodes = {"chief": NodeGroup()}
    return ClusterConfig(
        name="mnist", provider="local", strategy=strategy, nodes=nodes, train=train or Train()
    )


def test_a_chief_and_two_workers_are_told_this_exact_text() -> None:
    tasks = tasks_of({"chief": 1, "worker": 2})
    assert tf_config(tasks, addresses_of(tasks), tasks[2]) == (
        '{"cluster": {"chief": ["10.0.0.1:8900"], "worker": ["10.0.0.2:8900", "10.0.0.3:8900"]}, '
        '"task": {"type": "worker", "index": 1}}'
    )


def test_roles_come_in_the_order_of_tensorflow_whatever_order_the_tasks_came_in() -> None:
    tasks = tasks_of({"ps": 2, "worker": 2, "chief": 1})
    assert list(told(tasks, tasks[0])["cluster"]) == ["chief", "worker", "ps"]


def test_the_evaluator_is_told_only_of_itself_and_nobody_of_the_evaluator() -> None:
    tasks = tasks_of({"chief": 1, "worker": 1, "evaluator": 1})
    chief, _, evaluator = tasks
    assert told(tasks, evaluator) == {
        "cluster": {"evaluator": ["10.0.0.3:8900"]},
        "task": {"type": "evaluator", "index": 0},
    }
    assert list(told(tasks, chief)["cluster"]) == ["chief", "worker"]


@pytest.mark.parametrize("role", ["chief", "worker"])
def test_one_training_task_without_ps_has_no_tf_config(role: str) -> None:
    tasks = tasks_of({role: 1})
    assert tf_config(tasks, addresses_of(tasks), tasks[0]) is None


def test_a_lone_chief_with_an_evaluator_has_none_and_the_evaluator_has_its_own() -> None:
    tasks = tasks_of({"chief": 1, "evaluator": 1})
    chief, evaluator = tasks
    assert tf_config(tasks, addresses_of(tasks), chief) is None
    assert told(tasks, evaluator)["task"]["type"] == "evaluator"


def test_one_chief_with_a_ps_has_a_tf_config() -> None:
    tasks = tasks_of({"chief": 1, "ps": 1})
    assert list(told(tasks, tasks[0])["cluster"]) == ["chief", "ps"]


def test_roles_of_a_custom_strategy_come_after_those_of_tensorflow_by_name() -> None:
    tasks = tasks_of({"reader": 1, "actor": 1, "chief": 1})
    assert list(told(tasks, tasks[0])["cluster"]) == ["chief", "actor", "reader"]


def test_an_ipv6_address_is_bracketed() -> None:
    tasks = tasks_of({"chief": 1, "worker": 1})
    text = tf_config(tasks, {task.node: "fd00::1" for task in tasks}, tasks[0])
    assert '"chief": ["[fd00::1]:8900"]' in str(text)


@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [
        ("multi_worker_mirrored", True),
        ("parameter_server", True),
        ("mirrored", False),
        ("central_storage", False),
        ("one_device", False),
        ("tpu", False),
        ("horovod", False),
        ("custom", False),
    ],
)
def test_the_strategy_decides_unless_the_config_does(strategy: str, wanted: bool) -> None:
    assert wants_tf_config(config_of(strategy)) is wanted
    assert wants_tf_config(config_of(strategy, Train(tf_config=True))) is True
    assert wants_tf_config(config_of(strategy, Train(tf_config=False))) is False


def test_a_lone_task_gets_one_only_where_the_config_says_true() -> None:
    tasks = tasks_of({"chief": 1})
    arguments = (tasks, addresses_of(tasks), tasks[0])
    assert tf_config_for(config_of("multi_worker_mirrored"), *arguments) is None
    text = tf_config_for(config_of("custom", Train(tf_config=True)), *arguments)
    assert json.loads(str(text))["cluster"] == {"chief": ["10.0.0.1:8900"]}


@pytest.mark.parametrize(
    ("train", "setup"),
    [(Train(tf_config="estimator"), Setup(tensorflow="2.15")), (Train(), Setup(tensorflow="1.15"))],
)
def test_an_estimators_evaluator_sees_the_others_but_not_itself(train: Train, setup: Setup) -> None:
    tasks = tasks_of({"chief": 1, "worker": 1, "ps": 1, "evaluator": 1})
    config = replace(config_of("parameter_server", train), setup=setup)
    found = [json.loads(str(tf_config_for(config, tasks, addresses_of(tasks), me))) for me in tasks]
    assert list(found[0]["cluster"]) == ["chief", "worker", "ps"]
    assert all(one["cluster"] == found[0]["cluster"] for one in found)
    assert found[3]["task"] == {"type": "evaluator", "index": 0}


def test_any_other_evaluator_is_alone() -> None:
    tasks = tasks_of({"chief": 1, "worker": 1, "evaluator": 1})
    config = replace(config_of("multi_worker_mirrored"), setup=Setup(tensorflow="2.15"))
    text = tf_config_for(config, tasks, addresses_of(tasks), tasks[2])
    assert list(json.loads(str(text))["cluster"]) == ["evaluator"]


def test_false_takes_it_from_a_strategy_that_has_one() -> None:
    tasks = tasks_of({"chief": 1, "worker": 1})
    config = config_of("multi_worker_mirrored", Train(tf_config=False))
    assert tf_config_for(config, tasks, addresses_of(tasks), tasks[0]) is None


clusters = st.fixed_dictionaries(
    {"chief": st.integers(0, 1), "worker": st.integers(1, 9), "ps": st.integers(0, 4)},
    optional={"evaluator": st.integers(0, 1), "reader": st.integers(0, 2)},
).filter(lambda counts: counts["chief"] + counts["worker"] > 1)


@given(clusters, st.integers(1, 65535), st.randoms())
def test_every_task_agrees_on_the_cluster_and_finds_itself_in_it(
    counts: dict[str, int], port: int, random: Any
) -> None:
    tasks = list(tasks_of(counts, port))
    addresses = addresses_of(tuple(tasks))
    seen = set()
    for me in tuple(tasks):
        random.shuffle(tasks)
        value = json.loads(str(tf_config(tasks, addresses, me)))
        assert value["task"] == {"type": me.role, "index": me.index}
        place = value["cluster"][me.role][0 if me.role == "evaluator" else me.index]
        assert place == f"{addresses[me.node]}:{port}"
        assert all(value["cluster"].values())
        if me.role != "evaluator":
            seen.add(json.dumps(value["cluster"]))
            assert sum(map(len, value["cluster"].values())) == sum(counts.values()) - counts.get(
                "evaluator", 0
            )
    assert len(seen) == 1
