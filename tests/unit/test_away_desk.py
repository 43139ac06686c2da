"""What a desk is given, what it does with it, and in which order it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.away import job as jobs
from cloudtrain.away.desk_cluster import (
    MARGIN,
    away_notes,
    desk_config,
    desk_name,
    pinned_requirements,
    refuse_unfit,
    without_desks_share,
)
from cloudtrain.away.job import (
    Job,
    JobOutcome,
    code_on_desk,
    config_for_desk,
    from_bytes,
    recorded_outcome,
    requirement_files,
    to_bytes,
)
from cloudtrain.away.orders import OrderInbox, answer_of, new_order, new_order_key, post_order
from cloudtrain.away.published import Published, Publisher
from cloudtrain.away.reporter import Reporter, phase_of
from cloudtrain.away.signatures import new_desk_id
from cloudtrain.cli.errors import failure_of
from cloudtrain.cluster import lease
from cloudtrain.cluster.ownership import act_for, current_owner
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import record_cluster, refuse_away
from cloudtrain.commands import desk as desks
from cloudtrain.commands import run_away as away_command
from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core.errors import (
    CapacityError,
    LeftoverError,
    NodesError,
    NodeUnreachable,
    NotLanded,
    PermissionsError,
    RunFailed,
    UsageError,
)
from cloudtrain.core.events import DownBegun, NodeRequested, PlacementRefused
from cloudtrain.core.model import (
    ArtifactRules,
    Away,
    Candidate,
    ClusterConfig,
    Code,
    DataSource,
    Limits,
    Network,
    NodeGroup,
    Owner,
    Setup,
    SshProxy,
    Train,
)
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.core.retry import Clock
from cloudtrain.core.run_record import Run
from cloudtrain.core.shell import Secret
from cloudtrain.money.estimate import estimate
from cloudtrain.playbooks.code import CodeArchive, FolderCode, GitCode, PrivateCode
from cloudtrain.providers.aws.facts import FACTS
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider
from tests.support.run_index_parts import store

__all__ = ["store"]

NOW = 1_795_000_000.0
RUN = Run(
    id="20261124-000000-aaaa",
    cluster="mnist",
    command="true",
    tasks=(),
    state="running",
    created=NOW,
)


def config(**changes: Any) -> ClusterConfig:
    made = ClusterConfig(
        name="mnist",
        provider="aws",
        project="my-profile",
        strategy="multi_worker_mirrored",
        nodes={"worker": NodeGroup(count=2, machine="m6i.xlarge")},
        placement=("us-east-1a",),
        train=Train(command="python train.py"),
        artifacts=ArtifactRules(store="s3://bucket/mnist"),
        away=Away(identity="desk"),
        secrets={"KEY": "MY_KEY", "GIT": "GIT_TOKEN"},
        source="/nowhere/mnist.yaml",
    )
    return replace(made, **changes)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


# ── the desk's own cluster ───────────────────────────────────────────────────


def test_a_desk_is_one_small_machine_with_the_identity_and_nothing_of_the_training() -> None:
    made = desk_config(config(identity="trainer", tags={"team": "vision"}), Path("/p"), wait=600.0)
    (node,) = make_plan(made).nodes
    assert (made.name, node.name, node.machine) == ("mnist-desk", "mnist-desk-desk0", "t3.medium")
    assert (made.identity, made.tags) == ("desk", {"team": "vision"})
    assert made.limits.max_lifetime == 12 * 3600 + 600 + 1800 + MARGIN
    assert (made.secrets, made.data, made.train.command, made.code.path) == ({}, {}, "", "/p")
    assert made.setup.cache == "off", "what other machines have packed is not run on it"
    other = desk_config(config(away=Away(identity="desk", machine="m5.large")), Path("/p"))
    assert make_plan(other).nodes[0].machine == "m5.large"


def test_plan_says_what_a_desk_adds() -> None:
    (note,) = away_notes(config())
    assert re.fullmatch(r"`run --away` adds its controller: t3\.medium, 0\.0\d+ \$/hour", note)
    assert away_notes(config(away=Away())) == ()
    paid = config(limits=Limits(max_lifetime=3600.0, budget=10.0))
    assert away_notes(paid)[0].endswith("$/hour, for which limits.budget pays too")


def test_a_budget_pays_for_the_desks_whole_life_first() -> None:
    limits = Limits(max_lifetime=12 * 3600.0, budget=10.0)
    cluster = config(limits=limits)
    desk = desk_config(cluster, Path("/p"))
    bill = estimate(make_plan(desk))
    assert bill is not None
    assert bill.most is not None
    left = without_desks_share(cluster, desk).limits.budget
    assert left is not None
    hours = 12 + 0.5 + 1  # with limits.wait and MARGIN
    assert left == pytest.approx(10.0 - hours * bill.most, abs=0.02)
    longer = desk_config(cluster, Path("/p"), wait=24 * 3600.0)
    assert (without_desks_share(cluster, longer).limits.budget or 0.0) < left
    assert without_desks_share(config(), desk) == config()


def test_a_budget_that_the_desk_alone_could_spend_is_refused() -> None:
    cluster = config(limits=Limits(max_lifetime=12 * 3600.0, budget=0.5))
    with pytest.raises(UsageError, match=r"of 0\.5 \$: the controller alone costs up to 0\.\d+ \$"):
        without_desks_share(cluster, desk_config(cluster, Path("/p")))


def test_a_budget_needs_the_desks_price() -> None:
    away = Away(identity="desk", machine="m5.of-another-time")
    cluster = config(limits=Limits(max_lifetime=3600.0, budget=9.0), away=away)
    with pytest.raises(UsageError, match=r"price of the controller is not known .*of-another-time"):
        without_desks_share(cluster, desk_config(cluster, Path("/p")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"provider": "local"}, "rents a machine, and provider local rents none"),
        ({"away": Away()}, "needs `away: {identity: …}`, the name or ARN of an instance profile"),
        ({"artifacts": ArtifactRules()}, "artifacts.store: must be s3://"),
        ({"artifacts": ArtifactRules(store="gs://b/x")}, "artifacts.store: must be s3://"),
        ({"network": Network(private=True)}, "network.private: with `private` the controller"),
        (
            {"data": {"d": DataSource(source="gs://b/d")}},
            "data.d: the controller cannot read gs://b/d",
        ),
    ],
)
def test_what_a_desk_cannot_do_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_unfit(config(**changes))
    assert words in refused.value.message


def test_a_name_without_room_for_its_desk_and_a_run_without_an_end_are_refused() -> None:
    assert desk_name("a" * 25) == f"{'a' * 25}-desk"
    with pytest.raises(UsageError, match="too long a name"):
        desk_name("a" * 26)
    with pytest.raises(UsageError, match="needs limits"):
        desk_config(config(limits=Limits(max_lifetime=None)), Path("/p"))
    refuse_unfit(config(data={"d": DataSource(source="https://x/d")}))


def test_the_packages_of_a_desk_are_those_of_its_cloud_in_the_versions_here() -> None:
    wanted = pinned_requirements(["aws"])
    names = {line.partition("==")[0] for line in wanted}
    assert names >= {"boto3", "apache-libcloud", "paramiko", "cryptography", "rich"}
    assert names.isdisjoint({"cloudtrain", "google-auth", "azure-identity", "pytest", "matplotlib"})
    assert all(line.count("==") == 1 for line in wanted)


# ── its job ──────────────────────────────────────────────────────────────────


def test_a_job_has_nothing_that_only_this_machine_has(tmp_path: Path) -> None:
    (tmp_path / "inner.txt").write_text("six\n")
    (tmp_path / "requirements.txt").write_text("-r inner.txt\nrich>=13\n")
    given = config(
        source=str(tmp_path / "mnist.yaml"),
        setup=Setup(requirements="requirements.txt", packages=("numpy",)),
        code=Code(git="https://x/y.git", token="GIT"),
        network=Network(ssh_from="203.0.113.7/32"),
        limits=Limits(idle=60.0),
        env_file="/home/me/.env",
        candidates=(Candidate(provider="aws", placement=("us-east-1a",), project="my-profile"),),
    )
    made = config_for_desk(given, Code(path="~/code"), "10.1.2.3")
    assert (made.project, made.candidates[0].project) == (None, None), "a profile of this machine"
    assert (made.network.ssh_from, made.limits.idle, made.env_file) == ("auto", None, "")
    assert (made.secrets, made.away, made.code) == ({"KEY": "MY_KEY"}, Away(), Code(path="~/code"))
    assert made.setup.requirements == "requirements.txt"
    assert requirement_files(given) == {
        "requirements.txt": "-r inner.txt\nrich>=13\n",
        "inner.txt": "six\n",
    }
    assert config_for_desk(config(provider="gcp", project="p"), Code(), "").project == "p"


def test_nodes_are_open_to_the_desk_alone_and_need_no_way_around() -> None:
    jump = SshProxy(jump="me@bastion")
    private = Network(private=True, subnet="s", ssh_from="10.0.0.5/32", ssh_proxy=jump)
    made = config_for_desk(config(network=private), Code(), "10.1.2.3").network
    assert made == Network(private=True, subnet="s", ssh_from="10.1.2.3/32")
    assert desk_config(config(network=private), Path("/p")).network == private


def test_code_that_needs_a_git_credential_is_delivered_from_here(tmp_path: Path) -> None:
    nothing = CodeArchive(lambda tar: None)
    git = config(code=Code(git="https://x/y.git", ref="main"))
    public = GitCode(url="https://x/y.git", digest="c0ffee")
    assert code_on_desk(git, public) == Code(git="https://x/y.git", ref="c0ffee")
    own = PrivateCode(url="git@x:y.git", digest="c0ffee", archive=nothing)
    folder = FolderCode(root=tmp_path, digest="c0ffee", archive=nothing)
    for source in (own, folder):
        assert code_on_desk(git, source) == Code(path="~/.cloudtrain/mnist/code/c0ffee")


def test_secrets_are_named_by_their_variables_and_the_token_of_git_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "k")
    monkeypatch.setenv("GIT_TOKEN", "t")
    found = away_command.secrets_of(config(code=Code(git="https://x/y.git", token="GIT")))
    assert {name: value.reveal() for name, value in found.items()} == {"MY_KEY": "k"}
    assert isinstance(found["MY_KEY"], Secret)
    index = Setup(index="https://x/simple", index_password="GIT")
    shared = config(code=Code(git="https://x/y.git", token="GIT"), setup=index)
    assert set(away_command.secrets_of(shared)) == {"MY_KEY", "GIT_TOKEN"}
    assert config_for_desk(shared, Code(path="~/code"), "").secrets == shared.secrets


def test_only_addresses_of_services_are_taken_from_this_machines_environment() -> None:
    here = {"AWS_ENDPOINT_URL": "http://x", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/h"}
    found = jobs.environment(config(), here)
    assert found.items() - FACTS.desk_variables.items() == {("AWS_ENDPOINT_URL", "http://x")}


def test_a_desk_acts_for_the_one_who_sent_the_run_away() -> None:
    owner = Owner(id="abc", name="me", machine="laptop-1")
    act_for(owner)
    assert current_owner(FakeProvider()) == owner  # type: ignore[arg-type]


@pytest.mark.parametrize("listed", [True, False])
def test_a_desk_whose_machine_is_lost_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """It may also have deleted itself; then its report says so, which is read after this."""

    def silent(*_: object) -> str:
        raise NodeUnreachable("mnist-desk-desk0", "connection refused")

    desk = SimpleNamespace(name="mnist-desk-desk0", state="running", spot=False)
    session: Any = SimpleNamespace(
        nodes=(desk,), refreshed=lambda: SimpleNamespace(nodes=(desk,) if listed else ())
    )
    monkeypatch.setattr(away_command, "process_of", silent)
    why = away_command.why_ended(session, "mnist-desk")
    assert why == ("" if listed else "mnist-desk-desk0: its cloud has it no more")


# ── what it reports, and the orders that it takes ────────────────────────────


@dataclass
class Desk:
    """A desk without a cloud. `story` is what it did, in order."""

    job: Job
    records: Records
    store: ArtifactStore
    reporter: Reporter
    key: Any
    story: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: NOW, monotonic=time.monotonic, sleep=self.slept.append)

    def order(self, verb: Any, run: str | None = None) -> Any:
        order = new_order("mnist", self.job.desk, verb, run=run, now=NOW)
        post_order(self.store, self.key, order)
        return order

    def answer(self, order: Any) -> Any:
        found = answer_of(self.store, order)
        return None if found is None else (found.state, found.text)

    def state(self) -> Any:
        return Published(self.store, "mnist").state()

    def run(self) -> int:
        return desks.desk(
            self.job,
            reporter=self.reporter,
            console=LoggingConsole(),
            describe=failure_of,
            clock=self.clock,
        )


@pytest.fixture
def desk(store: ArtifactStore, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    key = new_order_key(tmp_path / "laptop")
    itself = config(name="mnist-desk")
    job = Job(
        desk=new_desk_id(NOW),
        name="mnist-desk",
        config=config(),
        itself=itself,
        public_key=key.public,
        owner=Owner(id="abc", name="me", machine="laptop-1"),
        began=NOW,
        expires=NOW + 3600,
    )
    warned: list[str] = []
    publisher = Publisher(store, "mnist", job.desk, log_file=home / "log", warn=warned.append)
    inbox = OrderInbox(store, "mnist", job.desk, key.public, home / "orders", warn=warned.append)
    records = Records("mnist")
    clock = Clock(now=lambda: NOW)
    reporter = Reporter(job, records, publisher, inbox, clock=clock)
    made = Desk(job, records, store, reporter, key)

    def deleted(name: str, journal: object) -> None:
        state = made.state()
        made.story.append(f"delete {name} after {state.phase if state else None}")

    provider = DeletingProvider(deleted)
    monkeypatch.setattr(desks, "open_provider", lambda config: provider)
    monkeypatch.setattr(lease, "holding_lease", lambda *given, **named: QuietLock())
    return made


@dataclass
class DeletingProvider:
    delete: Callable[[str, object], None]

    def delete_from_inside(self, cluster: str, journal: object) -> None:
        self.delete(cluster, journal)


class QuietLock:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def does(
    monkeypatch: pytest.MonkeyPatch, desk: Desk, ran: object, *destroyed: BaseException | None
) -> None:
    """`run` returns or raises that; each deletion of the nodes raises the next, or is done."""
    rest = list(destroyed)

    def run(*given: object, **named: object) -> Any:
        record_cluster(config(), desk.records)
        desk.story.append("run")
        if isinstance(ran, BaseException):
            raise ran
        desk.records.close()
        return ran

    def destroy(*given: object, **named: object) -> None:
        desk.story.append("destroy")
        error = rest.pop(0) if rest else None
        if error is not None:
            raise error
        desk.records.close()

    monkeypatch.setattr(desks, "run", run)
    monkeypatch.setattr(desks, "destroy_cluster", destroy)


def test_what_a_desk_does_is_read_from_the_record() -> None:
    records = Records("mnist")
    assert phase_of(records) == "starting"
    record_cluster(config(), records)
    assert phase_of(records) == "creating"
    records.journal(PlacementRefused(placement="us-east-1a", error="CapacityError", text="full"))
    assert phase_of(records) == "waiting"
    records.journal(NodeRequested(node="mnist-worker0"))
    assert phase_of(records) == "creating"
    records.save_run(RUN)
    assert phase_of(records) == "training"
    records.save_run(replace(RUN, state="landing"))
    assert phase_of(records) == "landing"
    records.save_run(replace(RUN, state="succeeded"))
    records.journal(DownBegun(nodes=()))
    assert phase_of(records) == "deleting"


def test_a_stop_is_asked_of_the_run_that_it_names_and_of_no_other(desk: Desk) -> None:
    record_cluster(config(), desk.records)
    early = desk.order("stop-run", RUN.id)
    desk.reporter.look()
    assert desk.answer(early) == ("refused", f"run {RUN.id} is not active")
    desk.records.save_run(RUN)
    stop = desk.order("stop-run", RUN.id)
    desk.reporter.look()
    assert desk.records.stop_asked(RUN.id)
    assert desk.answer(stop) == ("received", "")
    desk.reporter.answer()
    assert desk.answer(stop) == ("done", "")


def test_before_a_run_an_order_interrupts_the_command_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    desk.order("down")
    desk.reporter.look()
    assert sent == [signal.SIGINT]
    with pytest.raises(KeyboardInterrupt):
        desk.reporter.interrupted()
    desk.reporter.interrupted()  # a second one does not hit what cleans up


# ── its end ──────────────────────────────────────────────────────────────────


def test_the_end_is_published_before_the_machine_is_deleted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    does(monkeypatch, desk, replace(RUN, state="succeeded", exit_code=0))
    assert desk.run() == 0
    assert desk.story == ["run", "delete mnist-desk after ended"]
    assert (desk.state().phase, desk.state().exit_code, desk.state().error) == ("ended", 0, None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunFailed("task worker0 failed", task_exit_code=3), 1),
        (CapacityError("no room"), 3),
        (KeyboardInterrupt(), 130),
        (NodesError({"run": RunFailed("x", task_exit_code=1), "down": NotLanded("y")}), 5),
    ],
)
def test_a_failure_has_the_exit_code_of_the_command(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    does(monkeypatch, desk, error)
    desk.reporter.down.set()  # for nodes that are kept
    assert desk.run() == code
    assert desk.story[-2:] == ["destroy", "delete mnist-desk after ended"]
    assert desk.state().exit_code == code


def test_nodes_with_unlanded_files_are_kept_until_an_order(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    does(monkeypatch, desk, NotLanded("2 files are only on the nodes"), NotLanded("1 file"), None)
    waits: list[Any] = []

    def wait(seconds: float) -> bool:
        """The user looks at the state, and orders `down`: at first in vain."""
        desk.reporter.look()
        waits.append((desk.state().phase, desk.state().error))
        waits.append(desk.order("down"))
        desk.reporter.look()
        return True

    monkeypatch.setattr(desk.reporter, "running", contextlib.nullcontext)  # `wait` looks itself
    monkeypatch.setattr(desk.reporter.down, "wait", wait)
    assert desk.run() == 5
    assert desk.story == ["run", "destroy", "destroy", "delete mnist-desk after ended"]
    (phase, text), first, _, second = waits
    assert phase == "landing"
    assert text.startswith("the nodes are kept, as they hold what has not landed: 2 files are")
    assert desk.answer(first)[0] == "failed"
    assert desk.answer(second)[0] == "done"


def test_what_could_not_be_deleted_is_tried_again_and_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [LeftoverError("not deleted: instance mnist-worker0") for _ in range(9)]
    does(monkeypatch, desk, CapacityError("no room"), *left)
    assert desk.run() == 6
    assert desk.story == ["run", *["destroy"] * 4, "delete mnist-desk after ended"]
    assert desk.slept == [30.0, 60.0, 120.0]
    assert "mnist-worker0" in desk.state().error


def test_a_process_that_takes_over_runs_nothing_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    does(monkeypatch, desk, replace(RUN, state="succeeded", exit_code=0))
    record_cluster(config(), desk.records)
    desk.records.save_run(replace(RUN, state="failed", exit_code=1))
    assert desk.run() == 1
    assert desk.story == ["destroy", "delete mnist-desk after ended"]
    assert recorded_outcome() == JobOutcome(exit_code=1)
    desk.story.clear()
    assert desk.run() == 1
    assert desk.story == ["delete mnist-desk after ended"]


def test_a_desk_that_may_not_delete_itself_says_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    does(monkeypatch, desk, replace(RUN, state="succeeded", exit_code=0))

    def refuse(name: str, journal: object) -> None:
        raise PermissionsError("not allowed: compute.instances.delete")

    monkeypatch.setattr(desks, "open_provider", lambda config: DeletingProvider(refuse))
    assert desk.run() == 0
    assert desk.slept == [30.0, 60.0, 120.0]
    assert "could not delete itself: not allowed" in desk.state().error


def test_a_job_travels_whole(desk: Desk, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = replace(
        desk.job,
        requirements={"requirements.txt": "rich\n"},
        environment={"AWS_ENDPOINT_URL": "http://x"},
    )
    assert from_bytes(to_bytes(given)) == given
    secrets = home / "secrets.json"
    secrets.write_text(json.dumps({"MY_KEY": "k"}))
    (home / "job.json").write_bytes(to_bytes(given))
    monkeypatch.setattr(jobs.DeskPaths, "secrets", property(lambda paths: str(secrets)))
    for name in ("MY_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, "")
    job = desks.read_job()
    desks.prepare(job)
    assert (os.environ["MY_KEY"], os.environ["AWS_ENDPOINT_URL"]) == ("k", "http://x")
    assert (job.config.folder / "requirements.txt").read_text() == "rich\n"


# ── on the machine that sends it away ────────────────────────────────────────


def test_a_cluster_that_is_away_is_not_changed_from_here(home: Path) -> None:
    records = Records("mnist")
    record_cluster(config(), records)
    refuse_away(records)
    (records.folder / "away.json").write_text("{}")
    with pytest.raises(UsageError, match="mnist is away: the controller of `run --away`"):
        refuse_away(records)
    records.close()
    refuse_away(records)
