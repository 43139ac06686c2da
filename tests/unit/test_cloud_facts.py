"""Every field of every provider's row of facts: units, forms, sources."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import cloudtrain.providers
from cloudtrain import catalog, config
from cloudtrain.catalog import table
from cloudtrain.catalog.availability import family
from cloudtrain.config.network_sections import SshProxySection
from cloudtrain.core.cloud import (
    Cloud,
    DiskPrice,
    Egress,
    Family,
    NodeIdentity,
    NodeParts,
    Preemption,
    ProviderFacts,
    ProxyFault,
    ReservationName,
    ResourceName,
    SshService,
    TagRules,
    TokenQuery,
    cloud_of,
    clouds,
    facts_of,
    is_cloud,
    providers,
)
from cloudtrain.core.model import SPOT, Provisioning
from cloudtrain.core.store_kinds import KINDS
from cloudtrain.providers.aws.requests import FASTER
from cloudtrain.providers.azure.expiry import SOONEST
from cloudtrain.providers.gcp.machine_types import Shape
from cloudtrain.stores import extra_of
from tests.standins.cloud import DESCRIPTIONS

ROOT = Path(__file__).parents[2]
ROWS = [pytest.param(row, id=row.name) for row in providers()]
CLOUDS = [pytest.param(row, id=row.name) for row in clouds()]
AZURE_ID = "/subscriptions/00000000-1111-2222-3333-444444444444"
AZURE_GROUPS = "/providers/Microsoft.Compute/capacityReservationGroups"
AZURE_KIND = "/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
every_provider = pytest.mark.parametrize("row", ROWS)
every_cloud = pytest.mark.parametrize("cloud", CLOUDS)


def extras() -> list[str]:
    _, _, rest = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")
    return re.findall(r"^(\w+) = \[", rest.partition("\n[")[0], re.MULTILINE)


def test_every_module_in_providers_is_named_once() -> None:
    folder = Path(cloudtrain.providers.__file__).parent
    modules = {path.parent.name for path in folder.glob("*/provider.py")} - {"base"}
    assert sorted(cloudtrain.providers.NAMES) == sorted(modules)
    assert [row.name for row in providers()] == list(cloudtrain.providers.NAMES)


def test_a_name_that_no_provider_has_is_taken_for_none() -> None:
    nobody = facts_of("ibm")
    assert (nobody.name, nobody.packages) == ("ibm", ())
    assert not nobody.free, "it may make a bill"
    assert cloud_of("ibm") is None
    assert not is_cloud(None)


@every_provider
def test_rows_import_nothing_but_the_nouns(row: Cloud) -> None:
    """`--help`, `plan` and the config reader read them all."""
    folder = Path(cloudtrain.providers.__file__).parent / row.name
    for name in ("facts.py", "ssh_service.py", "__init__.py"):
        path = folder / name
        tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [getattr(node, "module", None) or node.names[0].name]
                own = {"cloudtrain.core.cloud", "cloudtrain.core.own_python"}
                own |= {f"cloudtrain.providers.{row.name}.ssh_service"}
                own |= {"cloudtrain.providers.base.fact_tables"}
                assert {n for n in names if n.partition(".")[0] not in sys.stdlib_module_names} <= (
                    own
                )


@every_provider
def test_a_provider_is_exactly_one_of_three_kinds(row: Cloud) -> None:
    assert [isinstance(row, Cloud), row.on_this_machine, row.takes_hosts].count(True) == 1
    assert row.free == (not isinstance(row, Cloud))
    assert is_cloud(row.name) == isinstance(row, Cloud)
    assert facts_of(row.name) is row


@every_provider
def test_a_provider_has_a_template_a_page_and_its_extra(row: Cloud) -> None:
    template = ROOT / "configs" / "templates" / f"{row.name}.yaml"
    assert config.load(template).provider == row.name
    assert (ROOT / "docs" / f"{row.name}.md").exists()
    assert bool(row.packages) == (row.name in extras())


@every_cloud
def test_names_and_words_of_a_cloud(cloud: Cloud) -> None:
    assert cloud.title
    assert cloud.vendor
    assert re.fullmatch("[a-z]+", cloud.project_word)
    assert re.fullmatch("[A-Z]+(_[A-Z]+)+", cloud.project_variable)
    assert cloud.project_variable in (ROOT / "docs" / f"{cloud.name}.md").read_text()
    assert cloud.fixed_end == cloud.fixed_end.rstrip(".")
    assert cloud.tpu_end == cloud.tpu_end.rstrip(".")
    assert cloud.shutdown_leaves in (None, "", "its disk")


@every_cloud
def test_the_store_of_a_cloud_comes_with_its_extra(cloud: Cloud) -> None:
    (kind,) = [kind for kind in KINDS if kind.scheme == cloud.store_scheme]
    assert extra_of(kind) == cloud.name
    assert kind.package


def test_no_two_clouds_share_what_tells_them_apart() -> None:
    for field in ("name", "title", "vendor", "project_variable", "store_scheme", "machines"):
        values = [getattr(cloud, field) for cloud in clouds()]
        assert len(set(values)) == len(values), field


@every_cloud
def test_the_table_has_what_the_row_names(cloud: Cloud) -> None:
    packaged = table.parse_table(cloud.machines.read_text(encoding="utf-8"))
    regions = {region for row in packaged.rows for region in row.prices}
    assert cloud.first_region in regions
    machine = catalog.machine_type(cloud.name, cloud.default_machine)
    assert machine is not None
    assert (machine.vcpus, machine.memory_gib, machine.accelerator) == (4, 16, None)
    desk = catalog.machine_type(cloud.name, cloud.desk_machine)
    assert desk is not None
    assert desk.vcpus == 2
    assert desk.memory_gib >= 4
    for row in packaged.rows:
        if row.accelerator is not None:
            attached = bool(cloud.attaches) and row.machine.startswith(cloud.attaches)
            built_in = re.fullmatch(cloud.gpu_machines, row.machine, re.IGNORECASE)
            assert attached or built_in, row.machine


@every_cloud
def test_regions_and_zones_of_a_cloud(cloud: Cloud) -> None:
    assert re.compile(cloud.zone).groups == 1
    assert re.compile(cloud.zone_names)
    assert 0.5 <= cloud.region_likeness <= 1
    regions = {region for row in table.packaged(cloud.name).rows for region in row.prices}
    for region in regions:
        assert cloud.region_of(region) == region
        assert not cloud.region or re.fullmatch(cloud.region, region), region
    for place in DESCRIPTIONS[cloud.name].placement:
        assert cloud.region_of(place) in regions
        assert catalog.region_of(cloud.name, place) == cloud.region_of(place)


@every_cloud
def test_families_name_their_source_and_what_to_take_instead(cloud: Cloud) -> None:
    for row in cloud.families:
        assert row.source.startswith("https://")
        assert row.read.year >= 2026
        assert row.shown
        assert row.kind
        re.compile(row.machines)
        refused = row.retired or row.unfit or row.arm or not row.markets
        if refused:
            assert row.instead, row.shown


SOLD_AS_USUAL = {
    "aws": r"(g4dn|g5|gr?6e?|g7e?|p3dn)\..*",
    "gcp": r"n1-.*|a3-edgegpu-8g",
    "azure": r"Standard_N[CD]\d+\w*_(T4_v3|v4|A100_v4|H100_v5|H200_v5)",
}
"""Machines with GPUs that are simply sold on demand and as spot."""


@every_cloud
def test_each_machine_with_gpus_is_of_a_family_or_is_sold_as_usual(cloud: Cloud) -> None:
    lacking = [
        row.machine
        for row in table.packaged(cloud.name).rows
        if row.accelerator is not None
        and family(cloud, row.machine) is None
        and not re.fullmatch(SOLD_AS_USUAL.get(cloud.name, "(?!)"), row.machine)
    ]
    where = f"a row of providers/{cloud.name}/families.csv says how it is sold, or SOLD_AS_USUAL"
    assert lacking == [], where


@every_cloud
def test_what_reservations_are_called(cloud: Cloud) -> None:
    assert set(cloud.reservations) <= {"reservation", "capacity-block"} & set(cloud.markets)
    for form in cloud.reservations.values():
        assert form.accepts(form.example)
        assert not form.accepts("two words")
        assert re.compile(form.pattern).groupindex, "what tells two apart"
        assert form.word.startswith("the ")
        assert "https://" in form.source


@pytest.mark.parametrize(
    ("cloud", "one", "other", "same"),
    [
        ("aws", "cr-0123456789abcdef0", "CR-0123456789ABCDEF0", True),
        ("aws", "cr-0123456789abcdef0", "cr-0123456789abcdef1", False),
        ("aws", "anything", "anything", True),
        ("azure", "t4", "capacity/T4", True),
        ("azure", "capacity/t4", f"{AZURE_ID}/resourcegroups/CAPACITY{AZURE_GROUPS}/T4", True),
        ("azure", "other/t4", f"{AZURE_ID}/resourceGroups/capacity{AZURE_GROUPS}/t4", False),
        ("azure", "capacity/t4", "capacity/a100", False),
    ],
)
def test_two_spellings_of_one_reservation_are_the_same(
    cloud: str, one: str, other: str, same: bool
) -> None:
    row = cloud_of(cloud)
    assert row is not None
    first, second = (Provisioning(market="reservation", name=name) for name in (one, other))
    assert row.same_purchase(first, second) is same
    assert not row.same_purchase(first, SPOT)


@every_cloud
def test_how_a_node_asks_whether_it_is_taken(cloud: Cloud) -> None:
    how = cloud.preemption
    if how is None:
        return
    assert re.fullmatch(r"http://[\w.]+", how.address), "a link-local service, without a path"
    assert how.path.startswith("/")
    assert bool(how.answer) != bool(how.event_type), "one way to read the answer"
    assert bool(how.token_path) == bool(how.token_header) == bool(how.token_headers)
    assert all(isinstance(value, str) for value in how.headers.values())
    assert 30.0 <= how.seconds <= 150.0
    assert how.source.startswith("https://")


@every_cloud
def test_what_the_field_tags_takes(cloud: Cloud) -> None:
    rules = cloud.tags
    assert rules is not None
    for name, value in (("team", "vision"), ("cost-center", "4711"), ("t", "")):
        assert re.fullmatch(rules.name, name)
        assert re.fullmatch(rules.value, value)
    assert not re.fullmatch(rules.name, "")
    assert not re.fullmatch(rules.value, "x" * 257)
    assert 0 < rules.most < 64, "with room for our own"
    assert all(each == each.lower() for each in rules.reserved)
    assert rules.ignores_case or all(re.fullmatch(rules.name, name) for name in rules.taken)
    assert rules.words
    assert rules.source.startswith("https://")


@every_cloud
def test_what_fields_take_that_name_a_resource_of_the_account(cloud: Cloud) -> None:
    for form in filter(None, (cloud.resource_group, cloud.disk_key, cloud.vpc, cloud.firewall)):
        assert form.accepts(form.example)
        assert not form.accepts("two  words")
        assert re.compile(form.pattern).groups, "what tells two apart"
        assert form.word.startswith("the ")
        assert form.source.startswith("https://")
    assert cloud.firewall is not None
    assert cloud.disk_key is not None
    assert cloud.most_firewalls > 0
    assert cloud.firewalls_of_subnets is (cloud.name != "aws"), "a node in EC2 always has a group"


@every_cloud
def test_what_the_field_identity_takes(cloud: Cloud) -> None:
    form = cloud.identity
    assert form is not None
    assert cloud.store_scheme in cloud.bucket_schemes
    assert form.accepts(form.example.replace("PROJECT", "my-project"))
    assert not form.accepts("two words")
    assert re.compile(form.pattern).groups, "what tells two apart"
    assert form.word.startswith("the ")
    assert "https://" in form.source


@pytest.mark.parametrize(
    ("cloud", "one", "other", "same"),
    [
        ("aws", "trainer", "arn:aws:iam::123456789012:instance-profile/ml/trainer", True),
        ("aws", "trainer", "arn:aws:iam::123456789012:instance-profile/trainer2", False),
        ("azure", "Ids/Trainer", f"{AZURE_ID}/resourcegroups/ids{AZURE_KIND}/trainer", True),
        ("azure", "other/trainer", f"{AZURE_ID}/resourceGroups/ids{AZURE_KIND}/trainer", False),
        ("gcp", "a@p.iam.gserviceaccount.com", "a@p.iam.gserviceaccount.com", True),
        ("gcp", "a@p.iam.gserviceaccount.com", "b@p.iam.gserviceaccount.com", False),
        ("gcp", "a@p.iam.gserviceaccount.com", "", False),
        ("gcp", None, "", True),
    ],
)
def test_two_spellings_of_one_identity_are_the_same(
    cloud: str, one: str | None, other: str | None, same: bool
) -> None:
    row = cloud_of(cloud)
    assert row is not None
    assert row.identity is not None
    assert row.identity.same(one, other) is same


@every_cloud
def test_how_a_node_asks_for_a_token_of_its_identity(cloud: Cloud) -> None:
    assert cloud.identity is not None
    how = cloud.identity.token
    assert re.fullmatch(r"http://[\w.]+", how.address), "a link-local service, without a path"
    assert how.path.startswith("/")
    assert how.path.endswith("/") == how.listed
    assert bool(how.scopes_path) == bool(how.scope)
    assert bool(how.token_path) == bool(how.token_header) == bool(how.token_headers)
    assert bool(how.headers) != bool(how.token_path), "no browser sends it by accident"
    assert how.key
    assert how.source.startswith("https://")


@every_cloud
def test_what_disks_and_addresses_cost(cloud: Cloud) -> None:
    parts = cloud.parts
    for disk in parts.disks:
        assert list(disk.steps) == sorted(disk.steps)
        assert 0.01 < (disk.per_month(100) or 0.0) / 100 < 0.5, "$ for a GB and month"
        assert (disk.per_month(100) or 0.0) < (disk.per_month(1000) or 0.0)
        assert disk.fixed < 20
        assert disk.per_gb < 0.2
        assert disk.kind
        assert re.compile(disk.machines)
    assert parts.disks[-1].gpus is None
    assert 0.001 < parts.address < 0.02
    assert parts.regions[cloud.first_region] == 1.0
    assert 1.0 <= max(parts.regions.values()) <= parts.elsewhere, "an upper bound"
    assert parts.gpu_disk_gb == 0 or parts.gpu_disk_gb >= cloud.gpu_disk_gb
    assert "https://" in parts.source
    assert parts.read.year >= 2026


def test_a_node_of_google_gets_the_disk_that_is_priced() -> None:
    gcp = cloud_of("gcp")
    assert gcp is not None
    names = {row.machine for row in table.packaged("gcp").rows}
    for name in [*names, "a3-ultragpu-8g-nolssd", "a4x-highgpu-4g", "n4d-standard-8", "c4-x-2"]:
        kind = next(disk.kind for disk in gcp.parts.disks if disk.serves(name, gpus=False))
        assert kind == Shape(machine=name).disk_type, name


def test_a_node_of_aws_with_a_gpu_gets_the_throughput_that_is_priced() -> None:
    aws = cloud_of("aws")
    assert aws is not None
    faster, plain = aws.parts.disks
    assert f"{FASTER['Throughput']} MiB/s" in faster.kind
    assert FASTER["Iops"] == 3000, "what gp3 includes"
    assert faster.serves("g5.xlarge", gpus=True)
    assert not faster.serves("m6i.xlarge", gpus=False)
    assert (faster.per_month(100) or 0) - (plain.per_month(100) or 0) == pytest.approx(15.0)


def test_azure_alone_goes_on_billing_disks_and_addresses_after_a_node_has_ended() -> None:
    assert [cloud.name for cloud in clouds() if cloud.keeps_parts] == ["azure"]


@every_cloud
def test_how_long_an_end_takes(cloud: Cloud) -> None:
    assert 60 <= cloud.end_takes <= 1800
    assert cloud.soonest_end == {"azure": SOONEST}.get(cloud.name, 60.0), "the driver's"


@every_cloud
def test_what_reading_a_store_costs_and_how_large_a_disk_is(cloud: Cloud) -> None:
    rates = cloud.egress
    assert rates is not None
    assert 0 < rates.regions < rates.internet < 1
    assert "https://" in rates.source
    for pattern in rates.areas.values():
        regions = {each for row in table.packaged(cloud.name).rows for each in row.prices}
        assert [region for region in regions if re.fullmatch(pattern, region)]
    assert 30 <= cloud.disk_gb < cloud.gpu_disk_gb
    names = {row.machine for row in table.packaged(cloud.name).rows}
    local = [n for n in names if re.fullmatch(cloud.scratch_machines, n, re.IGNORECASE)]
    assert bool(local) == bool(cloud.scratch_machines)
    assert len(local) < len(names)


@every_cloud
def test_each_way_to_buy_is_one_that_the_driver_knows(cloud: Cloud) -> None:
    assert set(cloud.usual_markets) <= set(cloud.markets)
    assert {"on-demand", "spot"} <= set(cloud.usual_markets)
    assert cloud.run_times.keys() <= set(cloud.markets)
    assert all(shortest < longest for shortest, longest in cloud.run_times.values())


@every_cloud
def test_infiniband_is_told_of_machines_of_this_cloud(cloud: Cloud) -> None:
    if cloud.infiniband:
        names = {row.machine for row in table.packaged(cloud.name).rows}
        assert [n for n in names if re.fullmatch(cloud.infiniband, n, re.IGNORECASE)]


@every_cloud
def test_what_the_driver_does_not_support_is_of_no_machine_that_is_sold(cloud: Cloud) -> None:
    offered = {each.kind for each in catalog.accelerators(cloud.name)}
    assert offered.isdisjoint(cloud.no_driver)
    assert all(cloud.no_driver.values())


def test_aws_alone_has_projects_that_another_machine_lacks() -> None:
    assert [cloud.name for cloud in clouds() if cloud.project_is_local] == ["aws"]


@every_cloud
def test_what_a_desk_gets_of_the_environment_is_no_credential(cloud: Cloud) -> None:
    for name in cloud.address_variables:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]+", name)
        assert not re.search("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|CONNECTION|CLIENT", name)


@every_cloud
def test_credentials_go_to_whole_names_of_the_cloud_or_only_sign(cloud: Cloud) -> None:
    assert cloud.signs_by_host != bool(cloud.credential_hosts)
    for name in cloud.credential_hosts:
        assert re.fullmatch(r"\.?[a-z0-9-]+(\.[a-z0-9-]+)+", name)
        assert name not in (".azure.com", ".windows.net", ".goog", ".google.com")


def test_a_desk_on_aws_asks_more_than_once_for_its_credentials() -> None:
    asking = {cloud.name: dict(cloud.desk_variables) for cloud in clouds()}
    assert asking.pop("aws") == {
        "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "5",
        "AWS_METADATA_SERVICE_TIMEOUT": "5",
    }
    assert not any(asking.values())


def test_azure_alone_goes_on_billing_the_address_of_a_node_that_is_stopped() -> None:
    assert [cloud.name for cloud in clouds() if cloud.stopped_keeps_address] == ["azure"]


def test_google_alone_has_os_login() -> None:
    assert [cloud.name for cloud in clouds() if cloud.os_login] == ["gcp"]


@every_cloud
def test_the_service_for_nodes_without_a_public_address_says_what_it_needs(cloud: Cloud) -> None:
    service = cloud.ssh_proxy
    assert service is not None
    assert service.field in SshProxySection.names()
    assert service.versions[0] == next(iter(service.programs))
    assert all("https://" in where for where in service.programs.values())
    assert [fault.lasting for fault in service.faults].count(False) <= 2
    for fault in service.faults:
        assert re.compile(fault.written)
        assert fault.hint[0].islower()
    assert re.search(r"\d{4}-\d\d-\d\d$", service.source)


def test_every_field_is_asserted_here() -> None:
    text = Path(__file__).read_text()
    rows = (
        *(ProviderFacts, Cloud, Family, Preemption, NodeParts, DiskPrice, Egress, NodeIdentity),
        *(TokenQuery, TagRules, ResourceName, ReservationName),
        *(SshService, ProxyFault),
    )
    names = {field.name for row in rows for field in fields(row)}
    assert [name for name in sorted(names) if f".{name}" not in text] == []


def test_only_google_has_tpus() -> None:
    assert [cloud.name for cloud in clouds() if cloud.tpus] == ["gcp"]


@every_cloud
def test_a_cloud_has_a_stand_in(cloud: Cloud) -> None:
    assert DESCRIPTIONS[cloud.name].store == cloud.store_scheme


@every_cloud
def test_gpuhunt_knows_the_cloud_by_its_name_there(cloud: Cloud) -> None:
    gpuhunt = pytest.importorskip("gpuhunt")
    if cloud.gpuhunt:
        from gpuhunt._internal import catalog

        known = {*catalog.OFFLINE_PROVIDERS, *catalog.ONLINE_PROVIDERS}
        assert cloud.gpuhunt in known, gpuhunt
