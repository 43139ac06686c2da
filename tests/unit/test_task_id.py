"""Role and index as one value: its name, made and parsed, and its order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core.model import Node, NodePlan
from cloudtrain.core.run_record import Task
from cloudtrain.core.task_id import ROLE_ORDER, TaskId

roles = st.from_regex(r"[a-z]([a-z-]{0,8}[a-z])?", fullmatch=True)
clusters = st.from_regex(r"[a-z][a-z0-9-]{0,29}", fullmatch=True)


@given(roles, st.integers(0, 10**6), clusters)
def test_a_nodes_name_tells_its_role_and_index(role: str, index: int, cluster: str) -> None:
    task = TaskId(role=role, index=index)
    assert TaskId.of_node(task.node_name(cluster), cluster) == task


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("mnist-worker12", TaskId(role="worker", index=12)),
        ("mnist-7", TaskId(role="", index=7)),
        ("mnist-worker", None),
        ("mnist-", None),
        ("mnist-worker٣", None),
        ("mnist-worker0\n", None),
    ],
)
def test_what_ends_with_no_number_is_no_nodes_name(name: str, task: TaskId | None) -> None:
    assert TaskId.of_node(name, "mnist") == task


def test_nodes_and_tasks_of_one_role_and_index_have_one_name_and_rank() -> None:
    node = Node(name="mnist-ps1", role="ps", index=1, state="running", address="a", internal="a")
    plan = NodePlan(name="mnist-ps1", role="ps", index=1, port=8900)
    task = Task(role="ps", index=1, node="mnist-ps1", port=8900)
    assert {each.task for each in (node, plan, task)} == {"ps1", task.name}
    assert node.rank == plan.rank == task.rank
    assert plan.name == TaskId(role="ps", index=1).node_name("mnist")


def test_they_sort_as_in_tf_config_and_other_roles_after_them() -> None:
    names = (*ROLE_ORDER, "actor", "learner")
    tasks = [TaskId(role=role, index=index) for role in reversed(names) for index in (10, 2)]
    ordered = sorted(tasks, key=lambda task: task.rank)
    assert [task.task for task in ordered] == [f"{role}{i}" for role in names for i in (2, 10)]
