"""What `ls --cloud`, `gc` and `down --provider` find by labels alone, and what they leave alone."""

from __future__ import annotations

import json
import re
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cloudtrain.cli.app import cli
from cloudtrain.cluster import lease
from cloudtrain.cluster.ownership import this_machine
from cloudtrain.cluster.session import record_cluster
from cloudtrain.config import load, to_json
from cloudtrain.core.errors import CredentialsError
from cloudtrain.core.events import CreationBegun, DownBegun
from cloudtrain.core.model import ClusterConfig, Holding, Node, NodeState, Owner
from cloudtrain.core.owner import digest, login
from cloudtrain.core.partial_list import NotAsked, PartialList
from cloudtrain.core.protocols import Principal
from cloudtrain.runs.landing_steps import cluster_seen
from cloudtrain.runs.state_table import next_step
from cloudtrain.state import Records
from tests.support.fakes import FakeProvider

ANN = Principal(id="ann@example.com", name="ann")
EVE = Principal(id="eve@example.com", name="eve")
LATER = time.time() + 7200.0


def owner(principal: Principal, machine: str = "elsewhere-1") -> Owner:
    return Owner(id=digest(principal.id), name=principal.name, machine=machine)


class Labelled(FakeProvider):
    """A FakeProvider that also has owners, and asks for nobody's credentials but ANN's."""

    owner: Owner
    error: Exception | None = None
    asked: list[str | None]

    def sweep(self) -> PartialList[Holding]:
        if self.error is not None:
            raise self.error
        held = (replace(held, owners=(self.owner,)) for held in super().sweep())
        return PartialList(held, self.not_asked)

    def nodes(self, cluster: str) -> tuple[Node, ...]:
        return tuple(replace(node, owner=self.owner) for node in super().nodes(cluster))


def node(cluster: str, *, state: NodeState = "running", expires: float | None = LATER) -> Node:
    return Node(
        name=f"{cluster}-chief0",
        role="chief",
        index=0,
        state=state,
        address="192.0.2.1",
        internal="10.0.0.1",
        machine="n1-standard-8",
        placement="us-east4-c",
        created=time.time() - 300.0,
        expires=expires,
    )


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Labelled:
    """`provider: gcp` answered in memory; the other clouds have no driver installed."""
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    cloud = Labelled(name="gcp", who=ANN)
    cloud.owner = owner(ANN)
    cloud.asked = []
    module = types.ModuleType("cloudtrain.providers.gcp.provider")
    module.__spec__ = types.SimpleNamespace(name="gcp")  # type: ignore[assignment]

    def provider(config: ClusterConfig) -> Labelled:
        cloud.asked.append(config.project)
        return cloud

    module.provider = provider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cloudtrain.providers.gcp.provider", module)
    monkeypatch.setattr(
        "cloudtrain.commands.accounts.missing_extra",
        lambda name: None if name in ("gcp", "local") else "libcloud",
    )
    monkeypatch.setattr("cloudtrain.cluster.session.missing_extra", lambda name: None)
    return cloud


def put(
    cloud: Labelled,
    *clusters: str,
    state: NodeState = "running",
    expires: float | None = LATER,
) -> None:
    for cluster in clusters:
        cloud.cloud[cluster] = {f"{cluster}-chief0": node(cluster, state=state, expires=expires)}


def put_idle(cloud: Labelled, *clusters: str) -> None:
    put(cloud, *clusters, state="stopped", expires=time.time() - 5.0)


def know(cluster: str) -> None:
    """With the key that opens its nodes, as after an `up`."""
    records = on_record(cluster)
    (records.folder / "key").touch(mode=0o600)


def on_record(cluster: str) -> Records:
    config = ClusterConfig(
        name=cluster, provider="gcp", project="p", strategy="custom", nodes={}, placement=("a",)
    )
    records = Records(cluster)
    records.create()
    records.save_config(to_json(config))
    return records


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_ls_tells_what_is_on_record_here(cloud: Labelled) -> None:
    know("mnist")
    assert run("ls").output == "mnist  gcp  up (by the local record)\n"


def test_ls_cloud_tells_what_no_file_knows(cloud: Labelled) -> None:
    put(cloud, "lost", "mnist")
    know("mnist")
    result = run("ls", "--cloud", "--provider", "gcp", "--project", "p")
    lines = [re.sub(r"[-\d]+ \d+:\d+", "TIME", line) for line in result.output.splitlines()]
    lines = [re.sub(r"\d+\.\d\d(?= \$)", "PRICE", line) for line in lines]
    told = "1 of 1 nodes running, created 5m ago, ends TIME, at least PRICE $/hour"
    assert lines == [
        "gcp p: lost  of ann  no local record",
        f"  {told}",
        "  lost-chief0  running  n1-standard-8  us-east4-c",
        "gcp p: mnist  of ann  known here",
        f"  {told}",
        "  mnist-chief0  running  n1-standard-8  us-east4-c",
    ]
    assert cloud.asked == ["p"]


def test_ls_cloud_without_a_name_asks_every_account_that_it_can(cloud: Labelled) -> None:
    put(cloud, "lost")
    document = json.loads(run("ls", "--cloud", "--json").output)
    assert [a["provider"] for a in document["accounts"]] == ["local", "gcp"]
    assert document["accounts"][1]["clusters"][0]["name"] == "lost"
    assert document["accounts"][1]["clusters"][0]["known"] is False


def test_an_account_that_nobody_named_need_not_have_credentials(cloud: Labelled) -> None:
    cloud.error = CredentialsError("no credentials are found", hint="log in")
    result = run("ls", "--cloud")
    assert result.exit_code == 0
    assert "gcp: not checked: no credentials are found" in result.output
    assert run("ls", "--cloud", "--provider", "gcp").exit_code == 4


# ── gc: what it takes, and what it leaves ────────────────────────────────────


def test_gc_destroys_what_nobody_uses_and_leaves_known_clusters_alone(cloud: Labelled) -> None:
    put_idle(cloud, "lost", "older")
    put(cloud, "mnist", state="stopped")
    know("mnist")
    result = run("gc", "--provider", "gcp", "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert list(cloud.cloud) == ["mnist"]
    document = json.loads(result.stdout)
    assert document["collected"] == ["lost", "older"]
    assert [c["name"] for c in document["accounts"][0]["clusters"]] == ["mnist"]
    assert not Records("lost").folder.exists()


def test_gc_leaves_what_runs_and_says_what_ends_it(cloud: Labelled) -> None:
    """Most likely another machine of the same person made it."""
    put(cloud, "live")
    put(cloud, "endless", expires=None)
    result = run("gc", "--provider", "gcp", "--project", "p", "--yes")
    assert result.exit_code == 0
    assert list(cloud.cloud) == ["live", "endless"]
    command = "`cloudtrain gc live --provider gcp --project p` deletes it"
    assert f"live is running and is kept: {command}" in result.stderr
    assert "1 of 1 nodes running, created 5m ago, ends " in result.stderr
    assert "nothing to collect" in result.stdout


def test_gc_takes_what_has_expired_and_not_what_is_only_stopped(cloud: Labelled) -> None:
    """Another machine's files may be on its disks alone."""
    put(cloud, "expired", expires=time.time() - 5.0)
    put_idle(cloud, "over")
    put(cloud, "stopped", state="stopped")
    put(cloud, "endless", state="stopped", expires=None)
    put(cloud, "starting", state="starting")
    put(cloud, "live")
    result = run("gc", "--provider", "gcp", "--yes")
    assert result.exit_code == 0
    assert list(cloud.cloud) == ["stopped", "endless", "starting", "live"]
    assert "overdue since" in result.stderr
    told = "stopped is stopped, may hold what has not landed, and is kept: `cloudtrain gc stopped "
    assert told in result.stderr


def being_created(cloud: Labelled, cluster: str, until: float) -> None:
    there = cloud.cloud[cluster]
    for name, each in there.items():
        there[name] = replace(each, generation="0123456789ab", creating_until=until)


@pytest.mark.parametrize("over", [-1.0, 2 * 86400.0, 9e10])
@pytest.mark.parametrize("words", [(), ("--running",), ("new",)])
def test_gc_takes_nothing_that_is_just_being_created(
    cloud: Labelled, words: tuple[str, ...], over: float
) -> None:
    """No creation takes a day: a label that says so keeps nothing."""
    put_idle(cloud, "new")
    being_created(cloud, "new", time.time() + 60.0)
    result = run("gc", *words, "--provider", "gcp", "--yes")
    assert list(cloud.cloud) == ["new"], result.stderr
    assert "new is being created until " in result.stderr
    assert "`cloudtrain gc new --provider gcp --owner ann` deletes it now" in result.stderr
    being_created(cloud, "new", time.time() + over)
    assert run("gc", *words, "--provider", "gcp", "--yes").exit_code == 0
    assert cloud.cloud == {}


def test_gc_takes_what_is_being_created_once_its_name_and_its_owner_are_given(
    cloud: Labelled,
) -> None:
    """Its machine, or its desk, may be gone for good: only they know."""
    put_idle(cloud, "new", "other")
    for name in ("new", "other"):
        being_created(cloud, name, time.time() + 60.0)
    for words in (("--owner", "ann"), ("new", "--owner", "eve")):
        run("gc", *words, "--provider", "gcp", "--yes")
        assert list(cloud.cloud) == ["new", "other"]
    run("gc", "new", "--owner", "ann", "--provider", "gcp", "--yes")
    assert list(cloud.cloud) == ["other"]


def test_gc_takes_what_this_machine_was_creating_once_nothing_here_is_at_work_on_it(
    cloud: Labelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that creates has the lock; a desk that was sent from here is on record."""
    put_idle(cloud, "new")
    cloud.owner = replace(cloud.owner, machine=this_machine())
    being_created(cloud, "new", time.time() + 60.0)
    words = ("gc", "new", "--provider", "gcp", "--yes")
    with Records("new").lock("up"):
        assert "new is being created until " in run(*words).stderr
    monkeypatch.setattr(lease, "is_recorded_desk", lambda cluster: cluster == "new")
    assert "new is being created until " in run(*words).stderr
    assert list(cloud.cloud) == ["new"]
    Records("new-desk").close()
    assert run(*words).exit_code == 0
    assert cloud.cloud == {}


def test_gc_of_what_has_time_left_says_who_may_be_at_work_on_it(cloud: Labelled) -> None:
    put(cloud, "live")
    result = run("gc", "--provider", "gcp", "--running", "--yes")
    assert cloud.cloud == {}
    assert "live has time left: a command of ann (" in result.stderr
    assert "created on elsewhere-1 may be at work on it" in result.stderr


@pytest.mark.parametrize("change", ["generation", "time left"])
def test_gc_leaves_what_has_changed_while_it_asked(
    cloud: Labelled, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    put_idle(cloud, "lost", "other")

    def meanwhile(*_: object, **__: object) -> None:
        old = cloud.cloud["lost"]["lost-chief0"]
        new = replace(old, generation="new") if change == "generation" else node("lost")
        cloud.cloud["lost"]["lost-chief0"] = new

    monkeypatch.setattr("cloudtrain.cli.accounts.confirm", meanwhile)
    result = run("gc", "--provider", "gcp")
    assert list(cloud.cloud) == ["lost"]
    assert "lost has changed since it was listed, and is left alone" in result.stderr


def test_down_refuses_what_was_created_anew_since_its_record_unless_the_owner_is_named(
    cloud: Labelled,
) -> None:
    """The record's keys do not open it, and what it says has landed is of other nodes."""
    know("mnist")
    for event in (CreationBegun(id="0123456789ab"), DownBegun(nodes=("mnist-chief0",))):
        Records("mnist").journal(event)
    put(cloud, "mnist")
    being_created(cloud, "mnist", time.time() - 1.0)
    cloud.cloud["mnist"] = {
        name: replace(each, generation="ba9876543210")
        for name, each in cloud.cloud["mnist"].items()
    }
    seen = cluster_seen(Records("mnist"), cloud.nodes("mnist"), files="unasked")
    assert next_step("down", seen) not in ("destroy", "nothing"), "its nodes are asked"
    result = run("down", "mnist", "--discard", "--yes")
    assert (result.exit_code, list(cloud.cloud)) == (2, ["mnist"])
    assert "mnist is another cluster by now than the one on record here" in result.stderr
    assert run("down", "mnist", "--discard", "--owner", "ann", "--yes").exit_code == 0
    assert cloud.cloud == {}


def test_down_from_another_machine_refuses_what_is_being_created_unless_its_owner_is_named(
    cloud: Labelled,
) -> None:
    put(cloud, "new")
    being_created(cloud, "new", time.time() + 60.0)
    words = ("down", "new", "--provider", "gcp", "--discard", "--yes")
    result = run(*words)
    assert (result.exit_code, list(cloud.cloud)) == (2, ["new"])
    assert "new is being created until " in result.stderr
    assert "owned by ann" in result.stderr
    result = run(*words, "--owner", "ann")
    assert (result.exit_code, cloud.cloud) == (0, {})
    assert "a command there may be at work on it" in result.stderr


def test_gc_with_running_takes_all_that_is_mine(cloud: Labelled) -> None:
    put(cloud, "live", "endless", "mnist")
    know("mnist")
    assert run("gc", "--provider", "gcp", "--running", "--yes").exit_code == 0
    assert list(cloud.cloud) == ["mnist"]


def test_gc_of_a_name_takes_that_one_alone(cloud: Labelled) -> None:
    put(cloud, "live", "another")
    put(cloud, "lost", state="stopped")
    result = run("gc", "live", "--provider", "gcp", "--project", "p", "--yes")
    assert result.exit_code == 0, result.output
    assert list(cloud.cloud) == ["another", "lost"]
    assert set(cloud.asked) == {"p"}
    assert run("gc", "another", "--yes").exit_code == 0
    assert list(cloud.cloud) == ["lost"]


def test_gc_asks_first(cloud: Labelled) -> None:
    put_idle(cloud, "lost")
    result = run("gc", "--provider", "gcp")
    assert result.exit_code != 0
    assert list(cloud.cloud) == ["lost"]


def test_gc_leaves_what_others_made_alone(cloud: Labelled) -> None:
    put_idle(cloud, "lost")
    cloud.owner = owner(EVE)
    for words in ((), ("lost", "--running"), ("--owner", "ann")):
        assert run("gc", *words, "--provider", "gcp", "--yes").exit_code == 6, "it is overdue"
    assert list(cloud.cloud) == ["lost"]
    run("gc", "--provider", "gcp", "--owner", "eve", "--yes")
    assert cloud.cloud == {}


def test_what_an_earlier_version_made_is_of_the_login_name(cloud: Labelled) -> None:
    put_idle(cloud, "lost")
    cloud.owner = Owner(id="somebody", name="somebody")
    run("gc", "--provider", "gcp", "--yes")
    assert list(cloud.cloud) == ["lost"]
    cloud.owner = Owner(id=login(), name=login())
    run("gc", "--provider", "gcp", "--yes")
    assert cloud.cloud == {}


def test_gc_of_a_cluster_that_was_taken_down_here_is_of_an_orphan(cloud: Labelled) -> None:
    put_idle(cloud, "mnist")
    know("mnist")
    Records("mnist").close()
    run("gc", "--provider", "gcp", "--yes")
    assert cloud.cloud == {}


def test_gc_names_what_is_left_over(cloud: Labelled) -> None:
    put_idle(cloud, "lost")
    cloud.cannot_destroy = frozenset({"lost-chief0"})
    result = run("gc", "--provider", "gcp", "--yes")
    assert result.exit_code == 6
    assert "not deleted: lost-chief0" in result.stderr


def test_a_record_without_the_keys_knows_nothing(cloud: Labelled) -> None:
    """As an `up` leaves one that was refused as the cluster is another's."""
    put(cloud, "mnist")
    cloud.owner = owner(EVE)
    on_record("mnist")
    assert (
        "of eve  no local record"
        in run("ls", "--cloud", "--project", "p", "--provider", "gcp").output
    )


# ── nobody ends another's ────────────────────────────────────────────────────


def test_down_with_a_provider_needs_no_record(cloud: Labelled) -> None:
    put(cloud, "lost")
    result = run("down", "lost", "--provider", "gcp", "--project", "p", "--discard", "--yes")
    assert result.exit_code == 0, (result.output, result.exception)
    assert cloud.cloud == {}
    assert set(cloud.asked) == {"p"}
    assert "lost\n  owned by ann (" in result.stderr
    assert "created on elsewhere-1" in result.stderr


def test_down_with_a_provider_destroys_no_work_unless_told(cloud: Labelled) -> None:
    put(cloud, "lost")
    result = run("down", "lost", "--provider", "gcp", "--yes")
    assert result.exit_code == 5
    assert list(cloud.cloud) == ["lost"]


@pytest.mark.parametrize("words", [(), ("--discard",), ("--discard", "--owner", "ann")])
def test_down_of_anothers_cluster_is_refused_with_whose_it_is(
    cloud: Labelled, words: tuple[str, ...]
) -> None:
    put(cloud, "mnist")
    cloud.owner = owner(EVE)
    result = run("down", "mnist", "--provider", "gcp", "--yes", *words)
    assert result.exit_code == 2
    for word in (
        "owned by eve (",
        "created on elsewhere-1",
        "created 5m ago",
        "ends ",
        "1 of 1 nodes running",
    ):
        assert word in result.stderr
    assert "--discard" not in result.stderr
    assert "--owner" not in result.stderr
    assert list(cloud.cloud) == ["mnist"]


@pytest.mark.parametrize("who", ["eve", "Eve", "eve@example.com", digest("eve@example.com")])
def test_down_with_its_owner_named_ends_anothers(cloud: Labelled, who: str) -> None:
    put(cloud, "mnist")
    cloud.owner = owner(EVE)
    words = ("down", "mnist", "--provider", "gcp", "--owner", who, "--yes")
    kept = run(*words)
    assert kept.exit_code == 5, "what its nodes hold is eve's to lose"
    assert "--discard" not in kept.stderr
    assert run(*words, "--discard").exit_code == 0
    assert cloud.cloud == {}


def test_another_eve_is_not_meant_by_an_address(cloud: Labelled) -> None:
    put(cloud, "mnist")
    cloud.owner = owner(EVE)
    words = ("--provider", "gcp", "--owner", "eve@example.org", "--discard", "--yes")
    assert run("down", "mnist", *words).exit_code == 2
    assert list(cloud.cloud) == ["mnist"]


def test_keys_of_a_cluster_that_has_ended_open_no_other_of_that_name(cloud: Labelled) -> None:
    """Mine ended by its lifetime and is open on record; eve has made one of that name since."""
    know("mnist")
    put(cloud, "mnist")
    cloud.owner = owner(EVE)
    assert run("down", "mnist", "--discard", "--yes").exit_code == 2
    assert list(cloud.cloud) == ["mnist"]


def test_what_this_machine_made_is_mine_whoever_is_logged_in_to_the_account(
    cloud: Labelled,
) -> None:
    know("mnist")
    put(cloud, "mnist")
    cloud.owner = owner(EVE, machine=this_machine())
    assert run("down", "mnist", "--discard", "--yes").exit_code == 0
    assert cloud.cloud == {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("ls", "--provider", "gcp"), "require --cloud"),
        (("ls", "mnist", "--cloud", "--provider", "gcp"), "not both"),
        (("ls", "--cloud", "--project", "p"), "requires --provider"),
        (("down", "--provider", "gcp"), "requires the cluster's NAME"),
        (("down", "x", "--project", "p"), "omit --provider"),
    ],
)
def test_an_account_is_told_once_and_whole(
    cloud: Labelled, arguments: tuple[str, ...], text: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr


# ── what a record here says of another account is never lost ─────────────────


def with_keys(cluster: str) -> Path:
    """A known cluster with the key that opens its nodes."""
    know(cluster)
    key = Records(cluster).folder / "key"
    key.touch(mode=0o600)
    return key


@pytest.mark.parametrize(
    "account",
    [("--provider", "gcp", "--project", "another"), ("--provider", "local")],
)
def test_down_elsewhere_leaves_the_keys_of_the_cluster_that_is_known_here(
    cloud: Labelled, account: tuple[str, ...]
) -> None:
    key = with_keys("mnist")
    result = run("down", "mnist", *account, "--discard", "--yes")
    assert result.exit_code == 2
    assert "cluster mnist is already running on gcp p; this config targets" in result.stderr
    assert key.exists()
    assert Records("mnist").is_open()


def test_a_file_that_names_another_provider_neither_ends_nor_replaces_a_cluster(
    cloud: Labelled, tmp_path: Path
) -> None:
    key = with_keys("mnist")
    path = tmp_path / "mnist.yaml"
    path.write_text(
        "provider: local\nstrategy: one_device\ncode: {path: .}\ntrain: {command: echo}\n"
    )
    for words in (("up",), ("down", "--discard", "--yes"), ("run",)):
        result = run(words[0], str(path), *words[1:])
        assert result.exit_code == 2, words
        assert "run `cloudtrain down mnist` first" in result.stderr
    assert key.exists()
    assert Records("mnist").config()["provider"] == "gcp"


def test_a_name_that_was_taken_down_here_before_is_no_leave_to_destroy_unlanded_work(
    cloud: Labelled,
) -> None:
    """Another machine has made a cluster of that name since."""
    know("mnist")
    Records("mnist").journal(DownBegun())
    Records("mnist").close()
    put(cloud, "mnist")
    for account in ((), ("--provider", "gcp")):
        assert run("down", "mnist", *account, "--yes").exit_code == 5
        assert list(cloud.cloud) == ["mnist"]


def test_gc_of_another_project_is_not_kept_from_an_orphan_by_a_name_that_is_known_here(
    cloud: Labelled,
) -> None:
    key = with_keys("mnist")
    put_idle(cloud, "mnist")
    run("gc", "--provider", "gcp", "--yes")
    assert list(cloud.cloud) == ["mnist"], "this may be the project of the record"
    run("gc", "--provider", "gcp", "--project", "another", "--yes")
    assert cloud.cloud == {}
    assert key.exists()


SILENT = NotAsked(place="europe-west4-a", why="instances: The scope is not reachable.")
DENIED = NotAsked(place="ap-south-1", why="not authorized", denied=True)


def test_ls_cloud_names_the_places_that_could_not_be_asked(cloud: Labelled) -> None:
    put(cloud, "mnist")
    cloud.not_asked = (SILENT, DENIED)
    result = run("ls", "--cloud", "--provider", "gcp")
    assert result.exit_code == 6
    assert result.stdout.splitlines()[-2:] == [
        "gcp: not checked: europe-west4-a (instances: The scope is not reachable.)",
        "gcp: not checked, access denied: ap-south-1",
    ]
    (account,) = json.loads(run("ls", "--cloud", "--provider", "gcp", "--json").stdout)["accounts"]
    assert [cluster["name"] for cluster in account["clusters"]] == ["mnist"]
    assert account["not_asked"][0] == {
        "place": "europe-west4-a",
        "why": "instances: The scope is not reachable.",
        "denied": False,
        "foreign": False,
    }


def test_ls_cloud_says_nothing_of_what_it_has_not_seen(cloud: Labelled) -> None:
    cloud.not_asked = (DENIED,)
    result = run("ls", "--cloud", "--provider", "gcp")
    assert result.exit_code == 0, "an organization's policy is no fault"
    assert result.stdout.splitlines() == [
        "gcp: holds nothing of cloudtrain's in the places that were queried",
        "gcp: not checked, access denied: ap-south-1",
    ]


FOREIGN = NotAsked(place="instance i-0abc in us-east-1", why="has odd labels", foreign=True)


def test_what_cannot_be_ours_is_one_line_and_all_else_goes_on(cloud: Labelled) -> None:
    """Nobody's label makes `ls --cloud`, `gc` or `down` end otherwise than without it."""
    put(cloud, "mnist")
    cloud.not_asked = (FOREIGN,)
    line = "gcp: instance i-0abc in us-east-1 has odd labels"
    result = run("ls", "--cloud", "--provider", "gcp")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, line)
    cloud.cloud.clear()
    put_idle(cloud, "mnist")
    result = run("gc", "--provider", "gcp", "--yes")
    assert (result.exit_code, cloud.cloud) == (0, {})
    assert line in result.stderr.splitlines()
    (account,) = json.loads(run("ls", "--cloud", "--provider", "gcp", "--json").stdout)["accounts"]
    assert account["not_asked"] == [
        {
            "place": "instance i-0abc in us-east-1",
            "why": "has odd labels",
            "denied": False,
            "foreign": True,
        }
    ]
    put(cloud, "mnist")
    result = run("down", "mnist", "--provider", "gcp", "--discard", "--yes")
    assert (result.exit_code, cloud.cloud) == (0, {})
    assert "instance i-0abc in us-east-1 has odd labels; it is left alone" in result.stderr


def test_gc_collects_what_it_sees_and_ends_with_6_where_it_could_not_look(cloud: Labelled) -> None:
    put_idle(cloud, "mnist")
    cloud.not_asked = (SILENT,)
    result = run("gc", "--provider", "gcp", "--yes")
    assert cloud.cloud == {}
    assert result.exit_code == 6
    assert "not checked: europe-west4-a" in result.stderr
    result = run("gc", "--provider", "gcp", "--yes")
    assert (result.exit_code, result.stdout) == (6, "")


def test_nodes_that_their_cloud_will_not_end_are_said(cloud: Labelled) -> None:
    put(cloud, "mnist")
    bare = replace(node("mnist"), expires=time.time() + 3600, no_end="no schedule")
    cloud.cloud["mnist"] = {bare.name: bare}
    result = run("ls", "--cloud", "--provider", "gcp")
    assert result.exit_code == 6
    assert "  mnist-chief0: NO END: no schedule; it is billed" in result.stdout
    assert run("gc", "--provider", "gcp", "--yes").exit_code == 6


def test_nodes_that_exist_after_their_end_are_overdue(cloud: Labelled) -> None:
    put(cloud, "mnist")
    late = replace(node("mnist"), expires=1_700_000_000.0)
    cloud.cloud["mnist"] = {late.name: late}
    result = run("ls", "--cloud", "--provider", "gcp")
    assert result.exit_code == 6
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(late.expires))
    assert f"  mnist-chief0: OVERDUE since {since}, still billed" in result.stdout
    (account,) = json.loads(run("ls", "--cloud", "--provider", "gcp", "--json").stdout)["accounts"]
    (cluster,) = account["clusters"]
    assert cluster["overdue"] == ["mnist-chief0"]
    assert cluster["nodes"][0]["overdue"] is True
    know("mnist")
    result = run("gc", "--provider", "gcp", "--yes")
    assert (result.exit_code, list(cloud.cloud)) == (6, ["mnist"])


def test_down_names_the_places_where_the_record_says_that_it_never_was(cloud: Labelled) -> None:
    know("mnist")
    put(cloud, "mnist")
    cloud.not_asked = (SILENT,)
    result = run("down", "mnist", "--yes", "--discard")
    assert result.exit_code == 0
    assert cloud.cloud == {}
    assert "not checked: europe-west4-a" in result.stderr
    assert "by the record, it was never there" in result.stderr


def test_gc_leaves_what_became_known_while_it_asked(
    cloud: Labelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_idle(cloud, "mnist")
    monkeypatch.setattr("cloudtrain.cli.accounts.confirm", lambda *_, **__: know("mnist"))
    result = run("gc", "--provider", "gcp", "--json")
    assert list(cloud.cloud) == ["mnist"]
    assert json.loads(result.stdout)["collected"] == []


def test_the_project_that_the_environment_named_at_up_is_the_one_that_down_asks(
    cloud: Labelled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mnist.yaml"
    path.write_text(
        "provider: gcp\nplacement: [us-east4-c]\nstrategy: one_device\n"
        "code: {path: .}\ntrain: {command: echo}\n"
    )
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "first")
    record_cluster(load(path), Records("mnist"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "second")
    for words in (("down", str(path), "--yes"), ("train", str(path))):
        result = run(*words)
        assert result.exit_code == 2
        assert "mnist is already running on gcp first" in result.stderr
    assert run("down", "mnist", "--yes").exit_code == 0
    assert set(cloud.asked) == {"first"}
