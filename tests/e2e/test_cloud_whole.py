"""Up, train, down on each cloud's stand-in, with real nodes behind it: as a user types it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import HostKeyMismatch
from cloudtrain.core.model import Node
from cloudtrain.providers.base.boot import move_end_command
from cloudtrain.ssh.transport import SshTransport
from cloudtrain.stores import open_store
from tests.standins.cloud import running
from tests.standins.nodes import Nodes, unavailable
from tests.standins.stores import s3
from tests.support.cloud_user import LIMIT, READY, Account
from tests.support.project import Project, until


@pytest.fixture(params=READY)
def account(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Account]:
    if reason := unavailable():
        pytest.skip(reason)
    with Nodes() as nodes, running(request.param, nodes=nodes) as cloud:
        project = Project(tmp_path / "user's project")
        project.environment.update(cloud.environment)
        yield Account(project, cloud, nodes)


def test_up_train_down_on_real_nodes(account: Account) -> None:
    account.do("up", account.config(), "--yes")
    names = [f"{account.project.name}-{task}" for task in ("chief0", "worker0")]
    assert [node["name"] for node in account.status()] == names
    assert {node["state"] for node in account.status()} == {"running"}
    said = account.do("exec", account.project.name, "--", "hostname").stdout
    assert sorted(said.splitlines()) == [f"chief0 │ {names[0]}", f"worker0 │ {names[1]}"]
    assert account.openssh(names[1], "cat made") == "ready\n"
    the_host_keys_are_others_than_in_the_user_data(account)

    keys_before = {name: key.pins for name, key in account.identity().host_keys.items()}
    account.do("up", account.config(), "--yes")
    assert {name: key.pins for name, key in account.identity().host_keys.items()} == keys_before

    account.do("train", "--json", "--", "--steps", "3")
    assert account.project.landed("chief0", "output/chief0.txt") == "done at 3\n"
    assert account.project.landed("worker0", "output/worker0.txt") == "done at 3\n"

    account.do("down", account.project.name, "--yes")
    assert account.cloud.holdings() == []
    assert account.nodes.running() == []
    assert not (account.folder / "host_keys").exists()


@pytest.mark.sweep(2, of="nodes")
def test_up_has_the_nodes_that_it_made_where_the_list_of_everything_is_behind(
    account: Account,
) -> None:
    account.cloud.set(wide_lag=5.0)
    up = json.loads(account.do("up", account.config(), "--yes", "--json").stdout)
    names = [f"{account.project.name}-{task}" for task in ("chief0", "worker0")]
    assert [node["name"] for node in up["nodes"]] == names
    account.cloud.set(wide_lag=0.0)  # all other commands go by the list
    assert account.openssh(names[1], "cat made") == "ready\n"
    account.do("down", account.project.name, "--yes")
    assert account.cloud.holdings() == []


@pytest.mark.sweep(2, of="nodes")
def test_no_private_key_is_told_anywhere(account: Account) -> None:
    """Neither on the screen with --debug, nor in a record or log here, nor in a boot log."""
    up = account.do("--debug", "up", account.config(), "--yes")
    secrets = [
        key.private.reveal().splitlines()[2] for key in account.identity().host_keys.values()
    ]
    secrets.append((account.folder / "key").read_text().splitlines()[2])
    keepers = {account.folder / "key", *(account.folder / "host_keys").iterdir()}
    files = [path for path in account.project.folder.rglob("*") if path.is_file()]
    told = [path.read_text(errors="replace") for path in files if path not in keepers]
    told += [up.stdout, up.stderr, account.logs()]
    assert [secret for secret in secrets if any(secret in text for text in told)] == []
    account.do("down", account.project.name, "--yes")
    assert not [path for path in keepers if path.exists()]


@pytest.mark.sweep(2, of="nodes")
def test_a_node_that_shuts_itself_down_is_there_again_after_the_next_up(account: Account) -> None:
    """Started again with its disk where the cloud keeps it, else made again with new keys."""
    account.do("up", account.config(), "--yes")
    chief, worker = (f"{account.project.name}-{task}" for task in ("chief0", "worker0"))
    before = account.identity().host_keys
    account.openssh(worker, "(sleep 0.3; sudo shutdown -P now) >/dev/null 2>&1 </dev/null &")
    until(lambda: account.nodes.running() == [chief], 60)
    account.do("up", account.config(), "--yes")
    after = account.identity().host_keys
    assert after[chief].pins == before[chief].pins
    made_again = after[worker].public != before[worker].public
    assert (after[worker].pins != before[worker].pins) == made_again
    assert after[worker].rotated
    assert account.openssh(worker, "cat made") == "ready\n"
    account.do("down", account.project.name, "--yes")
    assert account.cloud.holdings() == []


@pytest.mark.sweep(2, of="nodes")
def test_a_new_lifetime_moves_the_end_or_is_refused(account: Account) -> None:
    """Google alone keeps the end that a running VM was made with."""
    account.do("up", account.config(limits={"max_lifetime": "2h"}), "--yes")
    before = {node["name"]: float(node["expires"]) for node in account.status()}
    longer = account.config(limits={"max_lifetime": "5h"})
    if account.cloud.name == "gcp":
        refused = account.project.cloudtrain("up", longer, "--yes")
        assert refused.returncode == 2
        assert "with max_lifetime 2h" in refused.stderr
        assert "says 5h" in refused.stderr
        assert {n["name"]: float(n["expires"]) for n in account.status()} == before
    else:
        account.do("up", longer, "--yes")
        for node in account.status():
            assert float(node["expires"]) == pytest.approx(before[node["name"]] + 3 * 3600, abs=90)
    if account.cloud.name == "aws":
        told = account.openssh(f"{account.project.name}-worker0", "cat /var/lib/cloudtrain/end")
        assert float(told) == pytest.approx(max(before.values()) + 3 * 3600, abs=90)
        # The node's timer looks every 20 s, unless its sleep ends.
        soon = "date +%s | sudo tee /var/lib/cloudtrain/end; sudo pkill -x sleep"
        account.openssh(f"{account.project.name}-worker0", soon)
        until(lambda: len(account.nodes.running()) == 1, 60)
    account.do("down", account.project.name, "--yes")
    assert account.cloud.holdings() == []


@pytest.mark.sweep(0)
@pytest.mark.parametrize("account", ["aws"], indirect=True)
def test_down_of_a_stopped_node_whose_end_has_passed_keeps_it_until_it_has_landed(
    account: Account,
) -> None:
    """The node's own timer would terminate it, with its disk, as it boots."""
    train = {"command": "echo it >{output}/kept"}
    config = account.config(roles={"chief": 1}, strategy="one_device", train=train)
    account.do("up", config, "--yes")
    account.do("train", config)
    chief = f"{account.project.name}-chief0"
    account.openssh(chief, 'echo late >"$(dirname "$(find ~ -name kept | head -1)")/late"')
    past = int(time.time()) - 600
    account.openssh(chief, move_end_command(past))
    account.cloud.tell("tag", name=chief, key="cloudtrain-expires", value=str(past))
    account.cloud.tell("stop", name=chief)
    until(lambda: [node["state"] for node in account.status_of()] == ["stopped"], 60)
    done = account.do("down", account.project.name, "--yes")
    assert f"{chief}: its end has passed: it is given 30 min to land" in done.stderr
    account.do("fetch", account.project.name, account.project.folder / "landed")
    assert [path.read_text() for path in (account.project.folder / "landed").glob("**/late")]
    assert account.cloud.holdings() == []


def the_host_keys_are_others_than_in_the_user_data(account: Account) -> None:
    identity = account.identity()
    for told in account.status():
        node = Node(
            name=told["name"],
            role="worker",
            index=0,
            state="running",
            address=told["address"],
            internal=told["address"],
        )
        key = identity.host_keys[node.name]
        assert key.rotated
        first = dataclasses.replace(key, accepted=())
        knows_the_first = dataclasses.replace(identity, host_keys={node.name: first})
        with SshTransport(knows_the_first) as transport, pytest.raises(HostKeyMismatch):
            transport.ask(node, ":")
        with SshTransport(identity) as transport:
            assert transport.ask(node, "echo here").stdout == b"here\n"


PROOFS = ("image", "SSH", "host key", "end", "upload")


def deep(account: Account, code: int = 0, **sections: Any) -> dict[str, dict[str, Any]]:
    """The findings of `check --deep` on its machine, by what they are about; nothing is left."""
    config = account.config(**sections)
    done = account.project.cloudtrain("check", config, "--deep", "--json", timeout=LIMIT)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}{account.logs()}"
    assert (account.cloud.holdings(), account.nodes.running()) == ([], [])
    assert list((account.project.home / "clusters").glob("*trial*")) == []
    found = {each["what"]: each for each in json.loads(done.stdout)["findings"]}
    found["said"] = {"text": done.stderr}
    return found


@pytest.mark.sweep(2, of="nodes")
def test_a_deep_check_proves_on_one_cheapest_machine_what_nodes_need_and_leaves_nothing(
    account: Account, tmp_path: Path
) -> None:
    """A store of this machine has no presigned requests: the file comes through it. On Azure, the
    file's own machines are validated besides; its region lacks the cheapest, Standard_F2s_v2.
    """
    store, place = tmp_path / "store", [account.cloud.placement[0]]
    found = deep(account, artifacts={"store": store.as_uri()}, placement=place)
    assert [what for what in found if what.startswith("trial ")] == [f"trial {p}" for p in PROOFS]
    assert all(found[f"trial {proof}"]["ok"] for proof in PROOFS), found
    machine = {"aws": "t3.small", "gcp": "n1-standard-1", "azure": "Standard_D2s_v3"}
    assert (
        f"{machine[account.cloud.name]} created, logged in to and deleted in"
        in (found["trial"]["text"])
    )
    assert "about 0.01 $" in found["trial"]["text"]
    assert "for about a minute, as cluster" in found["said"]["text"]
    assert "armed and confirmed: ends at" in found["trial end"]["text"]
    assert found["trial upload"]["text"] == (
        f"{store.as_uri()}: 64 bytes through this machine; read back and deleted"
    )
    assert [path for path in store.rglob("*") if path.is_file()] == []
    assert ("rehearsal" in found) == (account.cloud.name == "azure")


@pytest.mark.sweep(2, of="nodes")
@pytest.mark.parametrize("account", ["aws"], indirect=True)
def test_the_machine_of_a_deep_check_uploads_by_a_request_that_is_signed_here(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the Free plan, too."""
    account.cloud.set(account_plan="FREE")
    with s3() as bucket:
        endpoint = bucket.environment["AWS_ENDPOINT_URL_S3"]
        account.project.environment["AWS_ENDPOINT_URL_S3"] = endpoint
        found = deep(account, artifacts={"store": bucket.uri}, machine="t3.micro")
        assert found["trial upload"]["text"] == (
            f"{bucket.uri}: 64 bytes by the node, with a request signed here; read back and deleted"
        )
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        assert list(open_store(bucket.uri).list()) == []


@pytest.mark.sweep(2, of="nodes")
@pytest.mark.parametrize("account", ["aws"], indirect=True)
def test_a_deep_check_that_fails_leaves_nothing_either(account: Account) -> None:
    full = {"status": 500, "code": "InsufficientInstanceCapacity", "times": 1000}
    account.cloud.fault("answer", action="RunInstances *", **full)
    done = account.project.cloudtrain("check", account.config(), "--deep", "--json")
    assert done.returncode == 3, done.stdout
    (trial,) = [f for f in json.loads(done.stdout)["findings"] if f["what"] == "trial"]
    assert "no placement can provide the nodes" in trial["text"]
    assert (account.cloud.holdings(), account.nodes.running()) == ([], [])
