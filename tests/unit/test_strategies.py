"""Every strategy that there is says all of itself in one value, and one more is one more value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from cloudtrain.cluster.plan import deciding_tasks, make_plan, serving_tasks, tasks
from cloudtrain.cluster.task_launch import LaunchInputs, TaskLaunch, task_launches
from cloudtrain.config import load
from cloudtrain.core.errors import UsageError
from cloudtrain.core.model import ClusterConfig, Node, NodeGroup, Setup, Train
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.task_id import ROLE_ORDER
from cloudtrain.playbooks import horovod, nvidia, tensorflow
from cloudtrain.runs.attempt_state import AttemptState, TaskView
from cloudtrain.runs.state_machine import decide
from cloudtrain.training import strategies, tf_config
from cloudtrain.training.strategies import STRATEGIES, strategy_of
from cloudtrain.training.strategy import Library, Strategy, requires

ROOT = Path(__file__).parents[2]
LAUNCHED = [strategy for strategy in STRATEGIES.values() if strategy.launched]
EVERY = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=lambda each: each.name)
EVERY_LAUNCHED = pytest.mark.parametrize("strategy", LAUNCHED, ids=lambda each: each.name)


def example(strategy: Strategy, **fields: object) -> ClusterConfig:
    values: dict[str, object] = {
        "name": "mnist",
        "provider": "aws",
        "placement": ("us-east-1",),
        "strategy": strategy.name,
        "nodes": {role: NodeGroup(count=count) for role, count in strategy.example.items()},
        "train": Train(command="python train.py --out {output}"),
        **fields,
    }
    return ClusterConfig(**values)  # type: ignore[arg-type]


def planned(config: ClusterConfig) -> tuple[Task, ...]:
    return tasks(make_plan(config))


def started(config: ClusterConfig) -> tuple[TaskLaunch, ...]:
    plan = make_plan(config)
    run = Run(
        id="r1",
        cluster=config.name,
        command=config.train.command,
        tasks=tasks(plan),
        state="starting",
        created=0.0,
    )
    addresses = {task.node: f"10.0.0.{number}" for number, task in enumerate(run.tasks)}
    work = dict.fromkeys(addresses, "/w")
    return task_launches(plan, run, LaunchInputs(addresses=addresses, work=work))


def written(folder: Path, strategy: Strategy, nodes: Mapping[str, int]) -> ClusterConfig:
    groups = ", ".join(f"{role}: {{count: {count}}}" for role, count in nodes.items())
    path = folder / "c.yaml"
    path.write_text(f"provider: local\nstrategy: {strategy.name}\nnodes: {{{groups}}}\n")
    return load(path, {})


# ── what each of them says ───────────────────────────────────────────────────


@EVERY
def test_the_registry_has_it_by_its_name(strategy: Strategy) -> None:
    assert STRATEGIES[strategy.name] is strategy
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", strategy.name)


def test_every_strategy_of_the_module_is_registered() -> None:
    made = [each for each in vars(strategies).values() if isinstance(each, Strategy)]
    assert [each.name for each in made if each.name not in STRATEGIES] == [], "add to STRATEGIES"


@EVERY
def test_its_fields_speak_of_roles_that_it_has(strategy: Strategy) -> None:
    has = strategy.roles or (*ROLE_ORDER, *strategy.example)
    assert strategy.example
    assert set(strategy.example) <= set(has)
    assert {*strategy.serves, *strategy.may_lose} <= set(has)
    assert set(strategy.misplaced).isdisjoint(strategy.roles)
    assert set(strategy.never_exit) <= {*has, "ps"}
    assert list(strategy.missing(strategy.example, has)) == []
    if strategy.single_node:
        assert sum(strategy.example.values()) == 1


@EVERY
def test_the_page_has_its_roles(strategy: Strategy) -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    table = page.partition("## Strategies and roles")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    found = [text for names, text in rows if f"`{strategy.name}`" in names]
    assert len(found) == 1, f"add a row for {strategy.name} to docs/config.md"
    (row,) = found
    for role in strategy.roles:
        assert f"`{role}`" in row


@EVERY_LAUNCHED
def test_its_example_is_a_config_that_is_planned(strategy: Strategy, tmp_path: Path) -> None:
    config = written(tmp_path, strategy, strategy.example)
    assert {task.role for task in planned(config)} == set(strategy.example)


@EVERY_LAUNCHED
def test_who_decides_is_one_of_its_tasks_and_ends_by_itself(strategy: Strategy) -> None:
    config = example(strategy)
    own = planned(config)
    winners = deciding_tasks(own, config)
    assert winners
    assert winners <= {task.name for task in own}
    assert not {task.name for task in own if task.role in strategy.never_exit} & winners


@EVERY_LAUNCHED
def test_who_serves_is_told_of_the_cluster(strategy: Strategy) -> None:
    """A task whose port is awaited without a TF_CONFIG would be awaited for ever."""
    config = example(strategy)
    own = planned(config)
    if serving_tasks(own, config):
        assert tf_config.wants_tf_config(config)
    assert serving_tasks(own, example(strategy, train=Train(command="x", tf_config=False))) == set()


@EVERY_LAUNCHED
def test_tf_config_lists_the_cluster_for_each_of_its_tasks_or_for_none(strategy: Strategy) -> None:
    made = started(example(strategy))
    texts = [launch.environment.get("TF_CONFIG") for launch in made]
    if not strategy.tf_config:
        assert texts == [None] * len(made)
        return
    seen = [json.loads(str(text)) for text in texts]
    counts = {role: len(hosts) for role, hosts in seen[0]["cluster"].items()}
    assert counts == strategy.example
    assert all(one["cluster"] == seen[0]["cluster"] for one in seen)
    assert [one["task"]["type"] for one in seen] == [launch.task.role for launch in made]


@EVERY_LAUNCHED
def test_the_users_line_is_in_what_each_node_runs(strategy: Strategy) -> None:
    for launch in started(example(strategy)):
        assert "python train.py --out /w/output" in launch.command
        assert (launch.command == "python train.py --out /w/output") == (strategy.wrap is None)


@EVERY_LAUNCHED
def test_a_run_of_it_is_done_when_its_deciders_have_ended_well(strategy: Strategy) -> None:
    config = example(strategy)
    own = planned(config)
    state = AttemptState(config=config, tasks={t.name: TaskView(task=t) for t in own}, started=0.0)
    for name in deciding_tasks(own, config):
        view = state.tasks[name]
        view.opened(1.0)
        view.exit_code, view.ended_at = 0, 10.0
    assert decide(state, 10.0).verdict in ("done", "go_on")
    assert decide(state, 1000.0).verdict == "done"


@EVERY_LAUNCHED
def test_keras_is_chosen_for_it_and_said_where_that_is_not_what_tensorflow_brings(
    strategy: Strategy,
) -> None:
    config = example(strategy, setup=Setup(tensorflow="2.17"))
    legacy = strategy.keras_3 != "works"
    assert tensorflow.keras_choice(config) == ("legacy" if legacy else "3")
    assert (tensorflow.keras_note(config) is not None) == legacy


def test_one_that_is_not_launched_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = Strategy(name="later", example={"chief": 1}, launched=False)
    monkeypatch.setitem(STRATEGIES, "later", later)
    with pytest.raises(UsageError, match="later is not supported") as caught:
        make_plan(example(later))
    assert str(caught.value.hint).endswith(", ".join(sorted(s.name for s in LAUNCHED)))


def test_one_that_only_another_version_knows_is_refused() -> None:
    newer = ClusterConfig(name="m", provider="local", strategy="quantum", nodes={})
    with pytest.raises(UsageError, match="quantum is not supported by this version"):
        make_plan(newer)


# ── one more ─────────────────────────────────────────────────────────────────

RING = Strategy(
    name="ring",
    example={"chief": 1, "helper": 2},
    roles=("chief", "helper"),
    missing=requires(helper="a ring needs at least one"),
    tf_config=True,
    serves=("chief", "helper"),
    may_lose=("helper",),
    never_exit=("helper",),
    environment=lambda config: {"RING_SIZE": str(sum(g.count for g in config.nodes.values()))},
    wrap=lambda plan, run, task, addresses, python, line: f"ring-launch -- {line}",
    keras_3="fails",
    library=Library(
        package="ring",
        version="1.0",
        tensorflow=((2, 13), (2, 20)),
        advised="2.17",
        python="3.10",
        needs=("ring-runtime",),
    ),
)


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> ClusterConfig:
    monkeypatch.setitem(STRATEGIES, RING.name, RING)
    return example(RING, setup=Setup(tensorflow="2.17", packages=("ring==0.9",)))


def test_one_more_is_planned_and_its_tasks_get_its_environment(ring: ClusterConfig) -> None:
    assert strategy_of(ring) is RING
    made = started(ring)
    assert [launch.task.name for launch in made] == ["chief0", "helper0", "helper1"]
    for launch in made:
        assert launch.environment["RING_SIZE"] == "3"
        assert launch.command == "ring-launch -- python train.py --out /w/output"
    text = json.loads(str(made[1].environment["TF_CONFIG"]))
    assert list(text["cluster"]) == ["chief", "helper"]
    assert text["task"] == {"type": "helper", "index": 0}


def test_one_more_is_watched_as_it_says(ring: ClusterConfig) -> None:
    own = planned(ring)
    state = AttemptState(config=ring, tasks={t.name: TaskView(task=t) for t in own}, started=0.0)
    for view in state.tasks.values():
        view.opened(1.0)
    state.formed_after = 1.0
    state.tasks["helper1"].exit_code, state.tasks["helper1"].ended_at = 1, 2.0
    assert decide(state, 30.0).warnings == (
        "helper1 has failed: exit code 1; the run continues without it",
    )
    state.tasks["chief0"].exit_code, state.tasks["chief0"].ended_at = 0, 40.0
    assert decide(state, 40.0).verdict == "done", "a helper never exits by itself"


def test_one_more_gets_its_librarys_needs_and_the_playbook_of_no_other(
    ring: ClusterConfig,
) -> None:
    node = Node(
        name="mnist-helper0", role="helper", index=0, address="h", internal="h", state="running"
    )
    environment, packages = tensorflow.steps(ring, node)
    assert packages.stdin is not None
    assert b"ring-runtime" in b"".join(packages.stdin())
    assert b"ring==0.9" not in b"".join(packages.stdin())
    assert "python3.10" in environment.run.arguments
    assert "python3.11" not in environment.run.arguments, "RING does not run on it"
    assert horovod.steps(ring, node) == ()
    assert nvidia.wanted(ring, node) is None
