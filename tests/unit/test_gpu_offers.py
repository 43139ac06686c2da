"""`cloudtrain gpus`: which machines have a GPU, where, at what price; the prices' age."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cloudtrain.catalog import availability, refresh, table
from cloudtrain.catalog.gpus import GPUS
from cloudtrain.catalog.offers import offers
from cloudtrain.catalog.table import remember
from cloudtrain.cli.app import cli
from cloudtrain.cli.gpus import as_document, text
from cloudtrain.commands.gpus import gpus, kind_names
from cloudtrain.core.cloud import clouds
from cloudtrain.core.model import Accelerator, Market
from cloudtrain.core.protocols import MachineFacts
from cloudtrain.providers.gcp import facts

PACKAGED = date(2025, 3, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def on(monkeypatch: pytest.MonkeyPatch, day: date) -> None:
    monkeypatch.setattr(availability, "today", lambda: day)


def cloudtrain(*words: str) -> Result:
    return CliRunner().invoke(cli, ["gpus", *words])


def refused(*words: str) -> tuple[str, str | None, int]:
    done = cloudtrain(*words)
    error, _, hint = done.stderr.strip().removeprefix("error: ").partition("\nhint: ")
    return error, hint or None, done.exit_code


def row(
    machine: str, has: str, prices: dict[str, float], *, spot: bool = False
) -> table.MachineRow:
    kind, _, count = has.partition(":")
    return table.MachineRow(
        machine=machine,
        vcpus=8,
        memory_gib=64,
        accelerator=Accelerator(kind=kind, count=int(count)),
        spot=spot,
        prices=prices,
    )


def fetched(cloud: str, day: date, *rows: table.MachineRow) -> None:
    """A newer table, as `--refresh-prices` leaves it."""
    path = table.refreshed_path(cloud)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table.format_table(day, "of a test", rows))


# ── offers ───────────────────────────────────────────────────────────────────


def test_offers_are_in_order_of_price_and_those_without_one_are_last() -> None:
    found = offers()
    known = [offer.price for offer in found if offer.price is not None]
    assert known == sorted(known)
    assert None not in [offer.price for offer in found[: len(known)]]
    assert {offer.provider for offer in found} == {cloud.name for cloud in clouds()}
    assert min(offer.date for offer in found if offer.date) == PACKAGED


def test_offers_are_those_of_a_kind_a_number_a_market_a_cloud_and_a_region() -> None:
    found = offers("nvidia-tesla-t4", 4, spot=False, providers=["aws"], regions=["us-east-1"])
    assert [(each.machine, each.price, each.price_per_gpu) for each in found] == [
        ("g4dn.12xlarge", 3.912, 0.978)
    ]
    assert not offers("T4", 4, regions=["atlantis"])


def test_what_is_not_sold_on_a_market_is_not_offered_there() -> None:
    markets = [offer.market for offer in offers("H200", providers=["gcp"])]
    assert markets == ["spot", "flex-start", "reservation"], "a3-ultragpu, never on demand"
    names = {offer.machine for offer in offers()}
    assert not {"p2.xlarge", "Standard_NV36ads_A10_v5"} & names, "retired, or needs GRID"


def test_a_machine_of_which_no_region_is_known_is_offered_without_one() -> None:
    found = offers("H200", providers=["azure"])
    assert {(each.region, each.price, each.date) for each in found} == {("", None, None)}
    assert not offers("H200", providers=["azure"], regions=["eastus"])


def test_a_refresh_adds_machines_and_its_prices_go_before_the_packaged_ones() -> None:
    day = date(2026, 11, 20)
    fetched(
        "aws",
        day,
        row("g4dn.xlarge", "T4:1", {"us-east-1": 0.4}),
        row("g9e.2xlarge", "T4:1", {"us-east-1": 0.1}),
    )
    first, second = offers("T4", 1, spot=False, providers=["aws"], regions=["us-east-1"])[:2]
    assert (first.machine, first.price, first.date) == ("g9e.2xlarge", 0.1, day)
    assert (second.machine, second.price, second.date) == ("g4dn.xlarge", 0.4, day)
    elsewhere = offers("T4", 1, spot=False, regions=["us-west-1"])[0]
    assert (elsewhere.machine, elsewhere.date) == ("g4dn.xlarge", date(2025, 11, 4))


def test_regions_without_a_spot_price_are_in_order_of_that_on_demand() -> None:
    there = {"us-west-2": 0.1, "ap-south-1": 0.3, "eu-west-1": 0.2}
    fetched("aws", date(2026, 11, 20), row("g9e.2xlarge", "T4:1", there))
    found = [offer for offer in offers("T4", 1, spot=True) if offer.machine == "g9e.2xlarge"]
    assert [(offer.region, offer.price) for offer in found] == [
        ("us-west-2", None),
        ("eu-west-1", None),
        ("ap-south-1", None),
    ]


def test_what_a_cloud_reported_goes_before_both_tables() -> None:
    fetched("aws", date(2026, 11, 20), row("g9e.2xlarge", "T4:1", {"us-east-1": 0.1}))
    l4 = Accelerator(kind="L4", count=2)
    told = MachineFacts(name="g9e.2xlarge", vcpus=16, memory_gib=128, accelerator=l4)
    arm = MachineFacts(name="g4dn.xlarge", vcpus=4, memory_gib=16, accelerator=l4, arm=True)
    remember("aws", [told, arm])
    found = offers("L4", 2, spot=False, providers=["aws"])
    assert {(each.machine, each.vcpus) for each in found} == {("g9e.2xlarge", 16)}
    assert [each.price for each in found] == [0.1, None, None], "or reserved, or in a block"
    names = {offer.machine for offer in offers("T4", providers=["aws"])}
    assert not {"g9e.2xlarge", "g4dn.xlarge"} & names


def test_each_kind_has_the_memory_that_gpuhunt_states() -> None:
    gpuhunt = pytest.importorskip("gpuhunt")
    stated: dict[str, set[int]] = {}
    for each in gpuhunt.KNOWN_NVIDIA_GPUS:
        item = type("Item", (), {"gpu_name": each.name, "gpu_memory": each.memory, "gpu_count": 1})
        accelerator = refresh._accelerator(item)
        assert accelerator is not None
        stated.setdefault(accelerator.kind, set()).add(each.memory)
    both = [gpu for gpu in GPUS if gpu.kind in stated]
    assert len(both) > 12
    assert [gpu.kind for gpu in both if gpu.memory_gb not in stated[gpu.kind]] == []


# ── what the command shows ───────────────────────────────────────────────────


@pytest.mark.parametrize("words", [(), ("T4",), ("H100", "--all"), ("A100", "--spot", "--all")])
def test_it_fits_a_terminal_of_80_columns(words: tuple[str, ...]) -> None:
    kind = words[0] if words else None
    report = gpus(kind, spot="--spot" in words)
    lines = list(text(report, every="--all" in words, spot="--spot" in words, width=80))
    assert max(map(len, lines)) <= 80, max(lines, key=len)


def test_kinds_are_listed_from_the_oldest_with_the_cheapest_price_of_both_markets() -> None:
    lines = cloudtrain().output.splitlines()
    assert lines[0].split() == [
        "GPU",
        "GB",
        "CUDA",
        "in",
        "a",
        "machine",
        "clouds",
        "$/hour",
        "spot",
    ]
    kinds = [line.split()[0] for line in lines[1 : lines.index("")]]
    assert kinds == kind_names()
    assert "T4           16   7.5  1 2 4 8       aws azure gcp    0.526  0.153" in lines
    assert "B300        270  10.3  8             aws                  ?      ?" in lines
    unfit = [kind.gpu.kind for kind in gpus().kinds if kind.no_tensorflow]
    said = lines[next(at for at, line in enumerate(lines) if line.startswith("no TensorFlow")) :]
    assert f"no TensorFlow runs on {', '.join(unfit)} (docs/machines.md)" in " ".join(said)


def test_machines_of_a_kind_are_listed_with_the_region_that_is_cheapest() -> None:
    lines = cloudtrain("A100:8").output.splitlines()
    assert lines[:6] == [
        "cloud  machine              GPUs  vCPUs   GiB  $/hour    spot  $/GPU  region",
        "aws    p4d.24xlarge            8     96  1152  21.958       ?  2.745  us-east-1 +11",
        "azure  Standard_ND96asr_v4     8     96   900  27.197       ?  3.400  eastus +2",
        "gcp    a2-highgpu-8g           8     96   680  29.387  14.431  3.673  us-central1 +9",
        "p4d.24xlarge of aws: also reservation, capacity-block",
        "a2-highgpu-8g of gcp: also flex-start, reservation",
    ]


def test_as_spot_the_region_and_the_order_are_those_of_the_spot_price() -> None:
    lines = cloudtrain("A100:8", "--spot").output.splitlines()
    assert lines[1:3] == [
        "gcp    a2-highgpu-8g           8     96   680  32.326  11.145  1.393  me-west1 +9",
        "aws    p4d.24xlarge            8     96  1152  21.958       ?      ?  us-east-1 +11",
    ]


def test_a_machine_that_is_not_sold_on_demand_says_so() -> None:
    lines = [line for line in cloudtrain("H200").output.splitlines() if "a3-ultragpu-8g" in line]
    assert lines[0].split() == ["gcp", "a3-ultragpu-8g", "8", "224", "2952", "-", "?", "?", "?"]
    assert lines[1:] == ["a3-ultragpu-8g of gcp: also flex-start, reservation"]


def test_a_machine_that_is_only_sold_by_reservation_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserved = replace(
        next(row for row in facts.FACTS.families if row.kind == "H200"), markets=RESERVED
    )
    others = tuple(row for row in facts.FACTS.families if row.kind != "H200")
    monkeypatch.setattr(facts, "FACTS", replace(facts.FACTS, families=(reserved, *others)))
    output = cloudtrain("H200", "--provider", "gcp").output.splitlines()
    assert output[1].split() == ["gcp", "a3-ultragpu-8g", "8", "224", "2952", "-", "-", "?", "?"]
    assert output[2] == "a3-ultragpu-8g of gcp: also reservation"
    document = json.loads(cloudtrain("H200", "--provider", "gcp", "--json").output)
    assert document["machines"][0]["regions"][0]["sold"] == ["reservation"]


RESERVED: tuple[Market, ...] = ("reservation",)


def test_a_narrow_terminal_leaves_out_what_matters_less_than_the_region() -> None:
    wide, narrow = list(text(gpus("H100", 8))), list(text(gpus("H100", 8), width=80))
    assert wide[0].split()[3:5] == ["vCPUs", "GiB"]
    assert [any(line.endswith("  us-east-1 +11") for line in each) for each in (wide, narrow)] == [
        True,
        True,
    ]
    assert {"vCPUs", "GiB"}.isdisjoint(narrow[0].split())
    assert max(map(len, narrow)) <= 80


def test_a_very_narrow_terminal_has_the_region_on_a_line_of_its_own() -> None:
    wide, narrow = list(text(gpus("H100", 8))), list(text(gpus("H100", 8), width=60))
    assert "       us-east-1 +11" in narrow
    assert all(line.split()[:4] in [each.split()[:4] for each in narrow] for line in wide)


def test_machines_of_an_unusual_shape_and_each_region_are_for_all() -> None:
    short, long = cloudtrain("P4:1").output, cloudtrain("P4:1", "--all").output
    assert "n1-standard-1 " not in short
    assert "n1-highmem-2 " not in short
    assert "more machines: --all" in short
    assert "n1-standard-1 " in long
    assert "n1-highmem-2 " in long
    assert sum("n1-standard-4 " in line for line in long.splitlines()) > 3


def test_a_zone_means_its_region() -> None:
    zone, region = (cloudtrain("T4", "--region", name) for name in ("us-east4-c", "us-east4"))
    assert zone.output == region.output
    assert "us-east4" in zone.output


# ── age of the prices ────────────────────────────────────────────────────────


def test_the_age_of_the_prices_stands_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, date(2025, 3, 12))
    lines = cloudtrain("T4").output.splitlines()
    assert lines[-1] == "prices of 2025-03-02, 10 days old"
    assert sum("2025-03-02" in line for line in lines) == 1


@pytest.mark.parametrize(("day", "stale"), [("2025-08-29", False), ("2025-08-30", True)])
def test_prices_of_more_than_180_days_are_warned_of_with_what_renews_them(
    day: str, stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, date.fromisoformat(day))
    warning = "warning: older than 180 days: `cloudtrain gpus --refresh-prices` renews them"
    assert (warning in cloudtrain().output) == stale
    assert json.loads(cloudtrain("--json").output)["stale"] == stale


def test_prices_of_different_days_are_named_by_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, date(2026, 11, 21))
    day = date(2026, 11, 20)
    fetched("aws", day, row("p4d.24xlarge", "A100:8", {"us-east-1": 20.0}))
    lines = cloudtrain("A100:8", "--region", "us-east-1", "--region", "eastus").output.splitlines()
    assert "prices of 2025-03-02 (azure), 2026-11-20 (aws), up to 629 days old" in lines
    lines = cloudtrain("A100:8", "--region", "us-east-1").output.splitlines()
    assert lines[-1] == "prices of 2026-11-20, 1 day old"


def test_prices_that_a_newer_table_lacks_are_named_and_not_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on(monkeypatch, date(2099, 11, 21))
    fetched("aws", date(2099, 11, 20), row("g6.xlarge", "L4:1", {"us-east-1": 0.8}))
    found = list(offers(providers=("aws",), regions={"us-east-1"}))
    machines = {each.machine for each in found if each.accelerator.kind == "L4" and each.price}
    listed = date(2026, 1, 19)  # the packaged table's
    sold = {each.accelerator.kind for each in offers(providers=("aws",)) if each.date == listed}
    lines = cloudtrain("L4", "--provider", "aws", "--region", "us-east-1").output.splitlines()
    assert lines[-2:] == [
        "prices of 2099-11-20, 1 day old",
        "not in newer tables, of 2026-01-19: g6.2xlarge, g6.4xlarge, gr6.4xlarge and "
        f"{len(machines - {'g6.xlarge'}) - 3} more",
    ]
    kinds = cloudtrain("--provider", "aws").output.splitlines()
    others = f"V100-32GB, T4, A100 and {len(sold - {'L4'}) - 3} more"
    assert f"not in newer tables, of {listed}: {others}" in kinds
    assert "warning" not in "".join(kinds)


def test_a_kind_without_any_price_says_so() -> None:
    last = cloudtrain("B300").output.splitlines()[-1]
    assert last == "no prices are known: `cloudtrain gpus --refresh-prices` renews them"


# ── JSON ─────────────────────────────────────────────────────────────────────


def test_the_document_has_every_machine_and_region() -> None:
    done = cloudtrain("A100", "--json")
    document = json.loads(done.output)
    assert document == as_document(gpus("A100"))
    (kind,) = document["kinds"]
    assert kind["counts"] == [1, 2, 4, 8, 16]
    assert kind["cheapest"]["machine"] == "a2-highgpu-1g"
    assert kind["cheapest"]["price_date"] == "2025-03-02"
    assert document["price_dates"] == dict.fromkeys(["aws", "azure", "gcp"], "2025-03-02")
    first = next(each for each in document["machines"] if each["machine"] == "p4d.24xlarge")
    assert first["regions"][0] == {
        "region": "us-east-1",
        "sold": ["on_demand", "spot", "reservation", "capacity_block"],
        "price_per_hour": 21.9576,
        "spot_price_per_hour": None,
        "price_date": "2026-01-19",
    }


def test_the_document_says_what_no_tensorflow_runs_on() -> None:
    kinds = {each["kind"]: each for each in json.loads(cloudtrain("--json").output)["kinds"]}
    assert [name for name, kind in kinds.items() if not kind["tensorflow"]] == [
        "B200",
        "B300",
        "RTXPRO4500",
        "RTXPRO6000",
    ]
    assert kinds["B300"]["cheapest"] is None
    assert json.loads(cloudtrain("--json").output)["machines"] == []


# ── what no cloud has ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["H10"], "no cloud has a GPU H10; did you mean H100?", None),
        (["l40"], "no cloud has a GPU L40; did you mean L40S?", None),
        (["k80:8"], "K80 is retired: use T4", None),
        (["T4:3"], "no machine has T4:3; available: T4:1, T4:2, T4:4, T4:8", None),
        (
            ["A10G", "--provider", "gcp"],
            "no machine of gcp is known to have A10G",
            "omit --provider",
        ),
        (
            ["T4", "--region", "us-esat-1"],
            "no machine in us-esat-1 is known to have T4",
            "did you mean us-east-1?",
        ),
        (
            ["--provider", "aws", "--region", "us-central1"],
            "no machine of aws in us-central1 is known to have a GPU",
            "omit --provider or --region",
        ),
        (["T4:"], "'T4:' is no GPU: write KIND or KIND:COUNT", "for example A100:8"),
        (["T4:0"], "'T4:0' is no GPU: write KIND or KIND:COUNT", "for example A100:8"),
    ],
)
def test_what_no_cloud_has_is_refused_with_the_nearest_that_one_has(
    words: list[str], error: str, hint: str | None
) -> None:
    assert refused(*words) == (error, hint, 2)


def test_a_kind_that_resembles_none_lists_all() -> None:
    message, _, _ = refused("zzz")
    assert message == f"no cloud has a GPU ZZZ; kinds: {', '.join(kind_names())}"
    message, _, _ = refused("A10")
    assert message.startswith("A10 on azure cannot be used: ")


def test_the_shell_completes_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloudtrain.cli import candidates

    command: Any = cli.get_command(None, "gpus")  # type: ignore[arg-type]
    kind = next(one for one in command.params if one.name == "kind")
    assert candidates.gpus(None, kind, "a100") == ["A100", "A100-80GB"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--cloud"], "--cloud requires a KIND"),
        (["T4", "--project", "p"], "--project requires --cloud"),
        (["T4", "--cloud", "--project", "p"], "--project requires --provider"),
    ],
)
def test_quotas_are_asked_for_a_kind_of_named_accounts(words: list[str], error: str) -> None:
    message, _, code = refused(*words)
    assert (message, code) == (error, 2)
