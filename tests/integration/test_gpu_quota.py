"""`cloudtrain gpus --cloud` on three accounts side by side, and prices from a served catalog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cloudtrain import catalog
from cloudtrain.catalog.table import remember
from cloudtrain.cli.app import cli
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import open_provider
from cloudtrain.core.extras import install_hint
from cloudtrain.core.model import Accelerator, NodeGroup
from cloudtrain.core.protocols import MachineFacts
from tests.standins.cloud import DESCRIPTIONS, Cloud, start
from tests.support.fakes import make_identity, no_journal
from tests.support.gpuhunt_catalog import T4, item, publish

CLOUDS = ("aws", "gcp", "azure")


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without credentials, with a state and a cache of their own."""
    for name in ("HOME", "CLOUDTRAIN_HOME", "CLOUDTRAIN_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "AWS_ACCESS_KEY_ID", "AZURE_CLIENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    return tmp_path


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, Cloud]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(start(name, thread=True)) for name in CLOUDS}


@pytest.fixture
def accounts(running: dict[str, Cloud], monkeypatch: pytest.MonkeyPatch) -> dict[str, Cloud]:
    """An empty account of each cloud, with its credentials."""
    for cloud in running.values():
        cloud.renew()
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
    return running


def cloudtrain(*words: str) -> Result:
    return CliRunner().invoke(cli, ["gpus", *words])


def asked(*words: str) -> dict[str, dict[str, Any]]:
    """The accounts of the document by their provider."""
    done = cloudtrain(*words, "--cloud", "--json")
    assert done.exit_code == 0, done.output + done.stderr
    return {each["provider"]: each for each in json.loads(done.stdout)["accounts"]}


def allowed(account: dict[str, Any], machine: str, region: str) -> dict[str, int | None]:
    """Of one machine in one region, by market."""
    return {
        "spot" if each["spot"] else "on demand": each["machines"]
        for each in account["allowances"]
        if (each["machine"], each["region"]) == (machine, region)
    }


# ── quotas ───────────────────────────────────────────────────────────────────


def test_each_account_says_what_its_quotas_allow(accounts: dict[str, Cloud]) -> None:
    accounts["aws"].set(quotas={"L-DB2E81BA": 9.0, "L-3819A6DF": 0.0})
    accounts["gcp"].set(
        quotas={"us-east4/NVIDIA_T4_GPUS": 3, "PREEMPTIBLE_NVIDIA_T4_GPUS": 0, "CPUS": 40}
    )
    accounts["azure"].set(quotas={"cores": 9, "eastus/lowPriorityCores": 4})
    found = asked("T4:1")
    assert list(found) == sorted(found, key=["gcp", "aws", "azure"].index)
    two = {"on demand": 2, "spot": 0}
    assert allowed(found["aws"], "g4dn.xlarge", "us-east-1") == two
    assert allowed(found["aws"], "g4dn.xlarge", "us-west-2") == two
    assert allowed(found["aws"], "g4dn.2xlarge", "us-east-1") == {"on demand": 1, "spot": 0}
    assert allowed(found["gcp"], "n1-standard-4", "us-east4") == {"on demand": 3, "spot": 3}
    assert allowed(found["gcp"], "n1-standard-16", "us-east4")["on demand"] == 2, "40 CPUS"
    eastus = allowed(found["azure"], "Standard_NC4as_T4_v3", "eastus")
    assert eastus == {"on demand": 2, "spot": 1}
    assert all(each["error"] is None for each in found.values())


def test_the_scarcest_quota_is_named(accounts: dict[str, Cloud]) -> None:
    accounts["aws"].set(quotas={"L-DB2E81BA": 4.0, "L-3819A6DF": 0.0})
    accounts["gcp"].set(quotas={"GPUS_ALL_REGIONS": 0})
    accounts["azure"].set(untold_quotas=["*NCAS*"])
    lines = cloudtrain("T4:1", "--cloud").output.partition("how many more")[2].splitlines()
    assert "gcp: used up or 0: GPUS_ALL_REGIONS" in lines
    both = "L-3819A6DF (vCPUs of G and VT spot), L-DB2E81BA (vCPUs of G and VT on-demand)"
    assert f"aws: used up or 0: {both}" in lines
    assert "azure: standardNCASv3_T4Family: not reported" in lines
    rows = [line for line in lines if line.startswith(("aws  ", "gcp  ", "azure  "))]
    assert "gcp    n1-standard-4             1          0     0  us-central1 +7" in rows
    assert "azure  Standard_NC4as_T4_v3      1          ?   500  eastus +6" in rows
    assert max(map(len, rows)) <= 80


@pytest.mark.parametrize("name", CLOUDS)
def test_machines_that_run_use_up_the_quota(
    name: str, accounts: dict[str, Cloud], tmp_path: Path
) -> None:
    described = DESCRIPTIONS[name]
    region = catalog.region_of(name, described.placement[0])

    def left() -> dict[str, int | None]:
        flags = ("--provider", name, "--region", region)
        return allowed(asked("T4:1", *flags)[name], described.machine, region)

    t4 = Accelerator(kind="T4", count=1)
    node = NodeGroup(machine=described.machine, accelerator=t4, disk_gb=100)
    plan = make_plan(accounts[name].config(nodes={"chief": node}))
    before = left()
    open_provider(plan.config).create(plan, make_identity(tmp_path, plan), no_journal)
    after = left()
    assert before["on demand"] is not None
    assert after == {**before, "on demand": before["on demand"] - 1}


def test_only_the_named_regions_are_asked(accounts: dict[str, Cloud]) -> None:
    for cloud in accounts.values():
        cloud.forget_calls()
    found = asked("T4:1", "--region", "us-east-1", "--region", "us-east4", "--region", "eastus")
    for account in found.values():
        assert len({each["region"] for each in account["allowances"]}) == 1
    actions = [call["action"] for call in accounts["azure"].calls()]
    assert sum("usages" in action for action in actions) == 1


def test_a_machine_of_which_no_region_is_known_has_those_of_the_account(
    accounts: dict[str, Cloud],
) -> None:
    found = asked("H200", "--provider", "azure")["azure"]
    assert len({each["region"] for each in found["allowances"]}) > 5


def test_what_a_cloud_does_not_report_is_not_known(accounts: dict[str, Cloud]) -> None:
    found = asked("B200")
    assert {each["machines"] for each in found["gcp"]["allowances"]} == {None}
    assert {each["spot"] for each in found["gcp"]["allowances"]} == {True}, "sold as spot alone"
    spot = [each for each in found["aws"]["allowances"] if each["spot"]]
    assert {each["quota"] for each in spot} == {"no quota is known of p6-b200.48xlarge as spot"}


def test_a_region_that_does_not_answer_is_named(accounts: dict[str, Cloud]) -> None:
    accounts["aws"].fault("answer", action="* us-west-2", status=503, times=1000)
    done = cloudtrain("T4:1", "--cloud", "--provider", "aws")
    assert done.exit_code == 6
    assert "aws: not checked: us-west-2 (" in done.output
    assert "us-east-1" in done.output


def test_a_cloud_without_credentials_is_a_line_and_no_error(
    running: dict[str, Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    running["gcp"].renew()
    for name, value in running["gcp"].environment.items():
        monkeypatch.setenv(name, value)
    done = cloudtrain("T4:1", "--cloud")
    assert done.exit_code == 0
    assert [line for line in done.output.splitlines() if line.startswith("aws: ")] == [
        "aws: not checked: no AWS credentials found"
    ]
    row = ["gcp", "n1-standard-4", "1", "128", "128", "us-central1", "+7"]
    assert row in [line.split() for line in done.output.splitlines()]
    named = cloudtrain("T4:1", "--cloud", "--provider", "aws")
    assert named.exit_code == 4


def test_a_cloud_whose_packages_are_missing_is_a_line_with_what_installs_them(
    accounts: dict[str, Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("commands.accounts", "cluster.session"):
        monkeypatch.setattr(
            f"cloudtrain.{module}.missing_extra", lambda name: "boto3" if name == "aws" else None
        )
    done = cloudtrain("T4:1", "--cloud")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    at = lines.index("aws: not checked: provider aws needs boto3, which is not installed")
    assert lines[at + 1] == f"  hint: {install_hint('aws')}"
    assert cloudtrain("T4:1", "--cloud", "--provider", "aws").exit_code == 2


# ── a served catalog ─────────────────────────────────────────────────────────


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """gpuhunt's catalog over HTTP, with a machine that no packaged table has."""
    folder = tmp_path / "published"
    folder.mkdir()
    items = {
        "aws": [
            item("g4dn.xlarge", "us-east-1", 0.4, **T4),
            item("g4dn.xlarge", "us-east-1", 0.2, spot=True, **T4),
            item("g9e.2xlarge", "us-east-2", 0.3, **{**T4, "cpu": 8, "memory": 64.0}),
        ],
        "gcp": [item("n1-standard-8", "us-central1-a", 0.7, **T4)],
        "azure": [item("Standard_NC4as_T4_v3", "eastus", 0.5, **T4)],
    }
    publish(folder, items)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", f"http://127.0.0.1:{server.server_port}/v3")
        yield folder / "v3"
        server.shutdown()
        thread.join()


def machines(*words: str) -> dict[str, dict[str, Any]]:
    done = cloudtrain(*words, "--json")
    assert done.exit_code == 0, done.output + done.stderr
    return {each["machine"]: each for each in json.loads(done.stdout)["machines"]}


def test_a_refresh_renews_prices_and_adds_machines(served: Path) -> None:
    assert "g9e.2xlarge" not in machines("T4:1")
    found = machines("T4:1", "--refresh-prices", "--provider", "aws")
    assert next(iter(found)) == "g9e.2xlarge"
    new = found["g9e.2xlarge"]
    assert (new["vcpus"], new["memory_gib"], new["accelerator"]) == (8, 64.0, "T4:1")
    first = {each["region"]: each for each in found["g4dn.xlarge"]["regions"]}["us-east-1"]
    assert (first["price_per_hour"], first["spot_price_per_hour"]) == (0.4, 0.2)
    assert first["price_date"] == "2026-11-20"
    assert list(machines("T4:1", "--provider", "aws")) == list(found), "kept for later commands"


def test_a_catalog_that_cannot_be_downloaded_changes_nothing(served: Path) -> None:
    (served / "gcp" / "version").unlink()
    done = cloudtrain("T4:1", "--refresh-prices")
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        "error: cannot fetch current prices: gpuhunt's catalog has no prices of gcp",
        "hint: omit --refresh-prices to use the prices on this machine",
    ]
    assert "g9e.2xlarge" not in machines("T4:1")


def test_what_a_cloud_reports_of_a_new_machine_wins(served: Path) -> None:
    two = Accelerator(kind="T4", count=2)
    told = MachineFacts(name="g9e.2xlarge", vcpus=8, memory_gib=64, accelerator=two)
    remember("aws", [told])
    found = machines("T4:2", "--refresh-prices", "--provider", "aws")
    assert found["g9e.2xlarge"]["regions"][0]["price_per_hour"] == 0.3
    assert "g9e.2xlarge" not in machines("T4:1")
