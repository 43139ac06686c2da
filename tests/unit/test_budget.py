"""`limits.budget`: what counts, until when it lasts, and that no history exceeds it."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudtrain.cli.status_rows import BUDGET, budget_words
from cloudtrain.cluster.lifetime import SAME, refusal
from cloudtrain.cluster.place_choice import budget_since, continue_budget
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.provision import create_nodes
from cloudtrain.cluster.session import Handle, recorded_config
from cloudtrain.commands import down as down_command
from cloudtrain.commands import idle as idle_command
from cloudtrain.commands.down import down_when_spent, is_spent
from cloudtrain.commands.status import on_record
from cloudtrain.config import from_json, load, to_json
from cloudtrain.core.cloud import Cloud, cloud_of
from cloudtrain.core.codec import pick
from cloudtrain.core.errors import (
    ConfigError,
    LeftoverError,
    NodesError,
    NotLanded,
    RunFailed,
    StoreError,
    UsageError,
)
from cloudtrain.core.events import (
    BudgetContinued,
    CleanupFailed,
    ClusterGone,
    DownBegun,
    Event,
    Line,
    NodeCreated,
    NodeDeletionBegun,
    NodeRequested,
    NodesPlaced,
    PlacementRefused,
    UpCompleted,
    from_line,
    to_line,
)
from cloudtrain.core.model import ON_DEMAND, ClusterConfig, Limits, Node, NodeGroup
from cloudtrain.core.retry import Clock
from cloudtrain.core.run_record import Run, Task
from cloudtrain.money.budget import budget_state, landing_time, latest_end
from cloudtrain.money.node_hours import NodeHours
from cloudtrain.report import notify
from cloudtrain.runs.attempt_state import AttemptState, TaskView
from cloudtrain.runs.idle import is_watched
from cloudtrain.runs.landing_steps import NOTHING, decide_drift
from cloudtrain.runs.node_agents import last_sync
from cloudtrain.runs.observers import LimitWatch, Watched
from cloudtrain.runs.root_cause import sentence
from cloudtrain.runs.state_machine import decide, is_retryable
from cloudtrain.state import Records
from tests.support.budget_parts import Spender, in_memory, use
from tests.support.idle_parts import RUN, World
from tests.support.landing_parts import Heard

__all__ = ["in_memory"]

HOUR = 3600.0
CLOUDS = ("gcp", "aws", "azure")
NODE = Node(name="a", role="worker", index=0, state="running", address="", internal="")

step = st.one_of(
    st.tuples(st.just("wait"), st.floats(0.0, 9.0)),
    st.tuples(st.just("lose"), st.integers(0, 5)),
    st.tuples(st.just("replace"), st.booleans()),
    st.tuples(st.just("grow"), st.integers(1, 2)),
    st.tuples(st.just("budget"), st.floats(0.3, 3.0)),
    st.tuples(st.just("up"), st.none()),
)


@pytest.mark.parametrize("spot", [False, True], ids=["on-demand", "spot"])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_whatever_happens_the_armed_end_keeps_the_bill_within_the_budget(
    cloud: str, spot: bool, in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends may differ by a minute (SAME), so the bill may exceed it by a minute's price."""

    few = min(30, settings().max_examples)

    @settings(max_examples=few, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(st.floats(2.0, 60.0), st.lists(step, max_size=12))
    def check(limit: float, steps: list[tuple[str, Any]]) -> None:
        spender = Spender(cloud, limit, spot=spot)
        use(spender, monkeypatch)
        spender.up()
        for kind, value in steps:
            before = len(spender.record.lines)
            if kind == "wait":
                spender.pass_time(value * HOUR)
            elif kind == "lose":
                spender.lose(value)
            elif kind == "replace":
                spender.replace_lost(on_demand=value)
            elif kind == "grow":
                spender.grow(value)
                spender.up()
            elif kind == "budget":
                spender.with_limits(budget=spender.limit * value)
                spender.up()
            else:
                spender.up()
            rounding = spender.per_hour() * SAME / HOUR + 1e-6
            bill = spender.bill_if_left_alone()
            assert bill <= spender.limit + rounding, (kind, spender.record.lines[before:])

    check()


# ── the armed end ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_new_cluster_ends_when_the_budget_is_spent(
    cloud: str, in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spender = Spender(cloud, 20.0, workers=2)
    use(spender, monkeypatch)
    assert spender.up()
    (end,) = spender.ends()
    assert spender.bill_if_left_alone() == pytest.approx(20.0, abs=0.05)
    assert end < spender.clock.now() + 30 * 86400
    labels = {order.labels["cloudtrain-expires"] for order in spender.account.orders}
    assert labels == {str(int(end))}


def test_a_lifetime_that_ends_sooner_counts(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spender = Spender("aws", 1000.0)
    spender.with_limits(max_lifetime=7200.0)
    use(spender, monkeypatch)
    begun = spender.clock.now()
    assert spender.up()
    assert spender.ends() == {begun + 7200.0}


def test_a_replaced_node_ends_with_the_others_and_at_the_same_time(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cloud in CLOUDS:
        spender = Spender(cloud, 20.0, workers=2)
        use(spender, monkeypatch)
        assert spender.up()
        before = spender.ends()
        spender.pass_time(3 * HOUR)
        spender.lose(1)
        spender.pass_time(60.0)
        assert spender.replace_lost()
        assert spender.ends() == before


def test_an_up_that_the_raised_budget_does_not_pay_for_moves_no_end(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of nodes that were stopped at their end, which this `up` would have started again."""
    spender = Spender("azure", 2.5)
    use(spender, monkeypatch)
    assert spender.up()
    ends = spender.ends()
    spender.pass_time(2 * HOUR)
    spender.grow(1)
    spender.with_limits(budget=4.375)
    assert not spender.up()
    assert spender.ends() == ends
    assert [line for line in spender.record.lines if line["event"] == "move end"] == []


def test_growing_moves_the_end_nearer_or_is_refused_where_the_cloud_cannot(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cloud, grows in (("aws", True), ("azure", True), ("gcp", False)):
        spender = Spender(cloud, 20.0)
        use(spender, monkeypatch)
        assert spender.up()
        before = max(spender.ends())
        spender.pass_time(HOUR)
        spender.grow(1)
        assert spender.up() is grows
        ends = spender.ends()
        assert max(ends) - min(ends) <= SAME
        assert (max(ends) < before - HOUR) is grows


def test_a_spot_node_becomes_no_dearer_one_that_the_budget_does_not_pay_for(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spender = Spender("gcp", 5.0, spot=True)
    use(spender, monkeypatch)
    assert spender.up()
    group = spender.config.nodes["worker"]
    dearer = replace(spender.config, nodes={"worker": replace(group, provisioning=ON_DEMAND)})
    plan = make_plan(dearer)
    assert refusal(spender.session(), plan) is None, "the node exists"
    spender.grow(1)
    plan = make_plan(replace(dearer, nodes={"worker": replace(group, count=2)}))
    text = refusal(spender.session(), plan)
    assert text is not None
    assert "Google moves the end of stopped VMs only" in text


def test_a_changed_budget_is_applied_by_up(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cloud in ("aws", "azure"):
        spender = Spender(cloud, 20.0)
        use(spender, monkeypatch)
        assert spender.up()
        (first,) = spender.ends()
        spender.pass_time(HOUR)
        spender.with_limits(budget=40.0)
        assert spender.up()
        (later,) = spender.ends()
        assert later > first + HOUR
        spender.with_limits(budget=10.0)
        assert spender.up()
        (sooner,) = spender.ends()
        assert sooner < first
        assert spender.up(), "and a second time nothing is left to do"
        assert spender.ends() == {sooner}
        spender.with_limits(budget=0.1)
        assert not spender.up(), "that much is spent"
        assert spender.ends() == {sooner}


def test_google_refuses_a_lower_budget_that_its_nodes_would_exceed(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spender = Spender("gcp", 20.0)
    use(spender, monkeypatch)
    assert spender.up()
    before = spender.ends()
    spender.with_limits(budget=10.0)
    with pytest.raises(UsageError, match=r"limits.budget says 10 \$|says 10 \$") as refused:
        decide_drift(spender.session(), NOTHING)
    assert "created with a budget of 20 $, and end at" in str(refused.value)
    assert "up --replace" in str(refused.value.hint)
    spender.with_limits(budget=40.0)
    assert spender.up(), "a higher one does no harm: the nodes end when they did"
    assert spender.ends() == before


def test_a_budget_of_less_than_an_hour_and_an_unknown_price_are_refused(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spender = Spender("aws", 0.4)
    use(spender, monkeypatch)
    assert not spender.up()
    assert spender.account.orders == []
    spender = Spender("aws", 50.0)
    use(spender, monkeypatch)
    group = replace(spender.config.nodes["worker"], machine="z9.brandnew")
    spender.config = replace(spender.config, nodes={"worker": group})
    with pytest.raises(UsageError, match="cannot be enforced: a price is not known"):
        create_nodes(spender.session(), make_plan(spender.config))
    assert spender.account.orders == []


# ── what counts ──────────────────────────────────────────────────────────────

AWS, AZURE = cast("Cloud", cloud_of("aws")), cast("Cloud", cloud_of("azure"))
FIVE = {"most": 5.0, "after_end": 0.0}


def lines(*events: tuple[float, Event]) -> list[Line]:
    """Events by their hour."""
    return [to_line(event, time=hour * HOUR, pid=1) for hour, event in events]


def spent(now: float, *events: tuple[float, Event]) -> float | None:
    found = budget_state(100.0, AWS, lines(*events), now * HOUR)
    return found.spent.most


def asked(name: str = "a", **made: object) -> NodeRequested:
    return NodeRequested(node=name, made={"lifetime": 36000.0, **FIVE, **made})


def placed(price: float, name: str = "a") -> NodesPlaced:
    return NodesPlaced(
        places={name: "x"}, prices={name: price}, ceilings={name: price}, disks={name: 0.0}
    )


def test_a_node_counts_from_its_request_whether_or_not_it_was_seen() -> None:
    made = NodeCreated(node="a", id="i-1", placement="x")
    assert spent(3, (1, asked())) == 10.0
    assert spent(3, (1, asked()), (2, made)) == 10.0
    assert spent(3, (1, asked()), (2, made), (2, placed(4.0))) == 8.0
    assert spent(3, (1, asked()), (2, PlacementRefused(placement="x"))) == 5.0
    failed = (2, CleanupFailed()), (2, PlacementRefused(placement="x"))
    assert spent(3, (1, asked()), *failed) == 10.0, "it may exist"
    assert spent(30, (1, asked())) == 50.0, "until its end"
    assert spent(3, (1, asked(most=None))) is None


def test_time_in_the_queue_of_flex_start_is_not_billed() -> None:
    waits = asked(provisioning="flex-start")
    assert spent(3, (1, waits)) == 10.0, "as long as it is not known when it began"
    assert spent(3, (1, waits), (2.5, placed(4.0))) == 3.0, "a quarter of an hour before at most"
    joins = (2.0, asked("b", provisioning="flex-start"))
    assert spent(4, (0, waits), (1, placed(4.0)), joins, (3, placed(4.0, "b"))) == 13.0 + 8.0


def test_what_is_being_deleted_counts_until_its_deletion() -> None:
    down = (2.0, DownBegun(nodes=("a", "b")))
    gone = (3.0, NodeDeletionBegun(node="a"))
    assert spent(9, (1, asked()), down, gone) == 10.0
    assert spent(4, (1, asked()), down) == 15.0


def test_a_candidate_that_was_given_up_counts_and_an_earlier_cluster_does_not() -> None:
    earlier = (0.0, asked()), (1.0, DownBegun()), (1.0, NodeDeletionBegun(node="a"))
    gone, again = (2.0, ClusterGone()), (5.0, asked("b"))
    assert spent(6, *earlier, gone, again) == 5.0
    assert spent(6, *earlier, gone, (2.0, BudgetContinued(since=0.0)), again) == 10.0
    assert spent(6, *earlier, gone, (2.0, BudgetContinued(since=1.5 * HOUR)), again) == 5.0
    twice = ((7.0, ClusterGone()), (7.0, BudgetContinued(since=0.0)))
    first = (*earlier, gone, (2.0, BudgetContinued(since=0.0)), again)
    deleted = (6.0, NodeDeletionBegun(node="b"))
    assert spent(9, *first, deleted, *twice) == 10.0, "each once"


def test_a_record_of_an_earlier_version_has_no_known_end() -> None:
    old = NodesPlaced(places={"a": "x"}, prices={"a": 1.0}, ceilings={"a": 1.0})
    state = budget_state(10.0, AWS, lines((0, NodeRequested(node="a", made={})), (0, old)), HOUR)
    assert (state.end, state.stop) == (None, None)


def test_what_ended_nodes_leave_is_kept_back_for_three_days() -> None:
    kept = asked(after_end=0.01)
    state = budget_state(100.0, AZURE, lines((0, kept)), 0.0)
    assert state.end == pytest.approx((100 - 0.72) / 5.0 * HOUR - AZURE.end_takes)
    plain = budget_state(100.0, AWS, lines((0, asked())), 0.0)
    assert plain.end == pytest.approx(20 * HOUR - AWS.end_takes)


def test_the_disk_of_a_node_that_has_ended_is_paid_for_with_the_others() -> None:
    runs = NodeHours(node="a", begin=0.0, price=5.0, disk=1.0, kept=True, whole=True)
    ended = replace(runs, node="b", expires=HOUR)
    end = latest_end(1000.0, AZURE, [runs, ended], 2 * HOUR)
    left = 1000 - (2 * 6 + 5 + 2) - 72 * 2
    assert end == pytest.approx((2 + left / (6 + 1)) * HOUR - AZURE.end_takes)


# ── while a run goes on ──────────────────────────────────────────────────────


def test_the_state_is_told_with_its_share_and_when_it_goes_down() -> None:
    state = budget_state(100.0, AWS, lines((0, asked(lifetime=None))), 4 * HOUR)
    assert str(state) == "at most 20.00 $ of 100 $ (20 %)"
    assert state.end is not None
    assert state.stop == pytest.approx(state.end - 660)
    assert not state.nearly_spent
    late = budget_state(100.0, AWS, lines((0, asked(lifetime=None))), 16 * HOUR)
    assert late.nearly_spent
    assert late.end == pytest.approx(state.end), "it stays where it is"
    assert late.stop is not None
    assert not late.is_spent(late.stop - 1)
    assert late.is_spent(late.stop)


def test_a_run_is_ended_early_enough_to_land_before_its_agents_would() -> None:
    for life in (1800.0, 7200.0, 86400.0, 7 * 86400.0):
        node = replace(NODE, created=0.0, expires=life)
        assert life - landing_time(life) < last_sync(node, 0.0)


def test_an_attempt_whose_budget_is_spent_is_ended_and_not_restarted(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spender = Spender("aws", 20.0)
    use(spender, monkeypatch)
    assert spender.up()
    session = spender.session()
    heard = session.console
    assert isinstance(heard, Heard)
    state = AttemptState(config=spender.config, tasks={"worker0": running()}, started=0.0)
    run = Run(id="r", cluster="mnist", command="x", tasks=(), state="running", created=0.0)
    watch = LimitWatch(Watched(session=session, run=run))
    watch.look(state)
    assert heard.warned == []
    assert decide(state, spender.clock.now()).verdict == "go_on"
    (end,) = spender.ends()
    spender.clock.time = end - 3 * HOUR
    for _ in range(3):
        watch.look(state)
        spender.clock.time += 60.0
    assert len(heard.warned) == 1, "once"
    assert "of 20 $" in heard.warned[0]
    assert heard.warned[0].endswith("are spent")
    assert decide(state, spender.clock.now()).verdict == "go_on"
    spender.clock.time = end - 600
    decision = decide(state, spender.clock.now())
    assert decision.verdict == "failed"
    assert decision.cause is not None
    assert sentence(decision.cause) == "limits.budget of 20 $ is spent"
    assert not is_retryable(decision.cause, (1,))


def running() -> TaskView:
    task = Task(node="mnist-worker0", role="worker", index=0, port=1, attempt=1)
    return TaskView(task=task, last_byte=0.0)


# ── taken down ───────────────────────────────────────────────────────────────


@pytest.fixture
def world(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A cluster on AWS of 5 $/hour since just now, with a budget of 10 $ and no `limits.idle`."""
    records = Records("mnist")
    records.create()
    config = ClusterConfig(
        name="mnist",
        provider="aws",
        strategy="custom",
        nodes={"worker": NodeGroup()},
        limits=Limits(budget=10.0),
    )
    records.save_config(to_json(config))
    records.journal(asked(lifetime=None))
    records.journal(UpCompleted())
    world = World(records)
    monkeypatch.setattr(idle_command, "destroy_cluster", world.down)
    monkeypatch.setattr(idle_command, "attend", world.attend)
    monkeypatch.setattr(idle_command, "POLL", 30.0)
    return world


LASTS = 2 * HOUR - AWS.end_takes - landing_time(2 * HOUR - AWS.end_takes)


def test_the_idle_process_takes_a_cluster_down_whose_budget_is_spent(world: World) -> None:
    assert is_watched(world.records)
    world.run_idle_process()
    (moment,) = world.tried
    assert moment == pytest.approx(LASTS, abs=3 * idle_command.POLL)
    assert world.console.said == ["mnist has spent its budget (limits.budget): taking it down"]


def test_a_run_that_nobody_attends_is_supervised_first(world: World) -> None:
    world.records.save_run(replace(RUN, created=world.now))
    world.run_idle_process()
    assert world.attended == [pytest.approx(LASTS, abs=3 * idle_command.POLL)]
    assert len(world.tried) == 1
    assert world.tried[0] >= world.attended[0]


def test_an_open_shell_does_not_keep_it_and_a_command_that_holds_it_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Records, "is_in_use", lambda self, use: True)
    held = world.records.lock("train")
    held.__enter__()
    world.then[LASTS + 500.0] = lambda: held.__exit__(None, None, None)
    world.run_idle_process()
    assert world.tried[0] == pytest.approx(LASTS + 500.0, abs=3 * idle_command.POLL)


def test_what_cannot_land_is_tried_again(world: World) -> None:
    world.faults = [StoreError("the bucket is gone") for _ in range(2)]
    world.run_idle_process()
    assert len(world.tried) == 3
    assert world.console.warned[0].startswith("the bucket is gone\nthe nodes are kept; retrying")


@pytest.mark.parametrize("hours", [0.1, 3.0])
def test_a_command_whose_run_has_spent_the_budget_takes_the_cluster_down(
    world: World, hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    down: list[str] = []
    monkeypatch.setattr(down_command, "destroy_at_last", lambda handle, **_: down.append("down"))
    told: list[str] = []
    monkeypatch.setattr(notify, "cluster_ended", lambda *given: told.append(given[2]))
    handle = SimpleNamespace(records=world.records, config=SimpleNamespace(name="mnist"))
    clock = Clock(now=lambda: world.begun + hours * HOUR)

    def spending() -> AbstractContextManager[None]:
        return down_when_spent(cast("Handle", handle), world.console, clock=clock)

    with pytest.raises(RunFailed, match="a task failed"), spending():
        raise RunFailed("a task failed")
    with spending():
        pass
    assert down == (["down"] * 2 if hours > 2 else [])
    assert told == ["budget"] * len(down)
    assert is_spent(world.records, clock) is (hours > 2)
    with pytest.raises(NotLanded), spending():
        raise NotLanded("the bucket is gone")
    assert len(down) <= 2, "its nodes are kept"

    def broken(*_: object, **__: object) -> None:
        raise LeftoverError("a node is left")

    monkeypatch.setattr(down_command, "destroy_at_last", broken)
    expected = NodesError if hours > 2 else RunFailed
    with pytest.raises(expected) as both, spending():
        raise RunFailed("a task failed")
    assert "a task failed" in str(both.value)


def test_status_tells_what_is_spent_and_when_it_goes_down(world: World) -> None:
    cluster = on_record("mnist")
    assert cluster.budget is not None
    now = world.begun + HOUR
    state = budget_state(10.0, AWS, world.records.events(), now)
    words = budget_words(state, None, now)
    assert words.startswith("at most 5.00 $ of 10 $ (50 %), goes down at ")
    assert words.endswith(", in 45m 00s") or ", in 4" in words
    assert budget_words(state, now + 60, now).endswith("the nodes expire before it is spent")
    found = pick(state, BUDGET)
    assert (found["limit"], found["spent"]) == (10.0, None)
    assert found["spent_at_most"] == pytest.approx(5.0, abs=0.01)
    assert found["goes_down"] == pytest.approx(world.begun + LASTS, abs=2)


def test_candidates_share_one_budget(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    records = world.records
    since = budget_since(records)
    assert since == pytest.approx(world.begun, abs=2)
    records.journal(DownBegun(nodes=("a",)))
    records.journal(NodeDeletionBegun(node="a"))
    records.close()
    here = cast("Handle", SimpleNamespace(records=records, config=recorded_config(records)))
    continue_budget(here, since)
    assert records.is_open()
    assert BudgetContinued(since=since) in [from_line(line) for line in records.events()]
    before = len(records.events())
    continue_budget(here, since)
    assert len(records.events()) == before, "once"


def test_a_new_cluster_begins_a_new_budget(own_home: Path) -> None:
    records = Records("new")
    assert budget_since(records) == pytest.approx(time.time(), abs=60)
    config = ClusterConfig(
        name="new", provider="aws", strategy="custom", nodes={}, limits=Limits(budget=1.0)
    )
    records.create()
    records.close()
    here = cast("Handle", SimpleNamespace(records=records, config=config))
    continue_budget(here, budget_since(records))
    assert not records.is_open()


# ── the file ─────────────────────────────────────────────────────────────────


def file(provider: str, limits: str) -> str:
    place = "placement: [us-east-1]\n" if provider == "aws" else ""
    return (
        f"name: mnist\nprovider: {provider}\n{place}strategy: custom\nnodes: {{worker: }}\n"
        f"limits: {limits}\ntrain: {{command: echo}}\n"
    )


@pytest.mark.parametrize(
    ("provider", "limits", "problem"),
    [
        ("local", "{budget: 5}", "limits.budget: provider local bills nothing"),
        ("aws", "{budget: 0}", "limits.budget: "),
        ("aws", "{budget: a lot}", "limits.budget: "),
        (
            "aws",
            "{budget: 5, max_lifetime: off}",
            "limits.max_lifetime: cannot be off with limits.budget, which the lifetime of the "
            "nodes holds",
        ),
    ],
)
def test_a_budget_that_cannot_be_is_refused_with_its_line(
    provider: str, limits: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(file(provider, limits))
    with pytest.raises(ConfigError) as refused:
        load(path)
    line = path.read_text().splitlines().index(f"limits: {limits}") + 1
    assert f"c.yaml:{line}: {problem}" in str(refused.value)


def test_a_budget_is_read_and_recorded(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(file("aws", "{budget: 12.5}"))
    config = load(path)
    assert config.limits.budget == 12.5
    assert from_json(json.loads(json.dumps(to_json(config)))).limits.budget == 12.5
