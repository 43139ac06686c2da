"""`data:` without a store: names, shards, digests, fit and cost."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.catalog import reported
from cloudtrain.checks.findings import Traffic, checked_data, egress_finding
from cloudtrain.checks.notes import data_notes
from cloudtrain.cluster.plan import make_plan
from cloudtrain.core.errors import DataError, PermissionsError, StoreError, UsageError
from cloudtrain.core.model import (
    Accelerator,
    ArtifactRules,
    ClusterConfig,
    DataSource,
    Endpoints,
    NodeGroup,
    Plan,
)
from cloudtrain.core.paths import size_text
from cloudtrain.core.protocols import MachineFacts
from cloudtrain.datasets.dataset import DataFile, Dataset, parts
from cloudtrain.datasets.estimates import landing_rate, reading_rate, too_small, transfer_cost
from cloudtrain.datasets.listing import (
    LONGEST_NAME,
    DataSigner,
    list_dataset,
    name_fault,
    open_source,
)

GB = 10**9


def config(**data: DataSource) -> ClusterConfig:
    return ClusterConfig(
        name="m",
        provider="local",
        strategy="multi_worker_mirrored",
        nodes={"chief": NodeGroup(), "worker": NodeGroup(count=2), "evaluator": NodeGroup()},
        data=data,
    )


def of_folder(folder: Path) -> ClusterConfig:
    return config(d=DataSource(source=folder.as_uri()))


def listed(made: ClusterConfig) -> Dataset:
    return list_dataset(made, "d", open_source(made, "d"))


def dataset(count: int, **source: object) -> Dataset:
    made = DataSource(source="gs://bucket/d", **source)  # type: ignore[arg-type]
    files = tuple(DataFile(path=f"f{n:03}", size=n, version="1") for n in range(count))
    return Dataset(name="d", source=made, files=files, base="d/")


# ── names ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/etc/passwd", "its path is absolute below the prefix"),
        ("a/../../b", "its path contains . or .. as a folder"),
        ("./a", "its path contains . or .. as a folder"),
        ("a//b", "its path contains //"),
        ("a/", "its name ends with /, yet it has content"),
        ("a\0b", "its name contains a control character"),
        ("a\nb", "its name contains a control character"),
        ("ü" * 128, "a part of its name has 256 bytes; files take at most 255"),
        ("\udcff", "its name is not valid UTF-8"),
        ("/".join(["x" * 200] * 20), "its path has more than 3000 bytes"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused_with_the_reason(path: str, fault: str) -> None:
    assert name_fault(path) == fault


@given(st.text(max_size=300))
def test_any_name_is_safe_below_its_folder_or_refused(path: str) -> None:
    if name_fault(path) is not None:
        return
    whole = os.path.normpath(f"/root/{path}")
    assert whole == f"/root/{path}"
    assert all(0 < len(name.encode()) <= LONGEST_NAME for name in path.split("/"))
    assert not set(path) & {"\0", "\n"}


@given(st.lists(st.text(alphabet="ab/ .é", min_size=1, max_size=6), max_size=6))
def test_files_of_any_names_are_listed_sorted_and_once(names: list[str]) -> None:
    files = [DataFile(path=name, size=1, version="1") for name in sorted(set(names))]
    made = Dataset(name="d", source=DataSource(source="gs://bucket"), files=tuple(files))
    swapped = replace(made, source=DataSource(source="gs://bucket2"))
    assert made.digest != swapped.digest
    if files:
        assert made.digest != replace(made, files=made.files[1:]).digest


# ── shards ───────────────────────────────────────────────────────────────────

ROLES = ("chief", "worker", "worker", "evaluator")


@given(st.integers(0, 50), st.integers(1, 9))
def test_shards_are_disjoint_equal_and_lose_only_the_rest(count: int, ranks: int) -> None:
    made = dataset(count)
    shards = [made.shard(rank, ranks) for rank in range(ranks)]
    assert {len(shard) for shard in shards} == {count // ranks}
    paths = [file.path for shard in shards for file in shard]
    assert sorted(paths) == [file.path for file in made.files[: count // ranks * ranks]]


def test_without_shards_every_node_or_every_node_of_the_role_gets_all_files() -> None:
    assert [len(part) for part in parts(dataset(4), ROLES)] == [4, 4, 4, 4]
    assert [len(part) for part in parts(dataset(4, role="worker"), ROLES)] == [0, 4, 4, 0]


def test_shards_go_to_chief_and_workers_or_to_the_role() -> None:
    split = parts(dataset(6, shard=True), ROLES)
    names = [[file.path for file in part] for part in split]
    assert names == [["f000", "f003"], ["f001", "f004"], ["f002", "f005"], []]
    assert [len(p) for p in parts(dataset(6, shard=True, role="worker"), ROLES)] == [0, 3, 3, 0]


def test_files_that_are_no_equal_shards_are_refused_or_dropped_as_the_file_says() -> None:
    with pytest.raises(UsageError, match=r"data\.d: 7 files cannot be divided into 3") as caught:
        parts(dataset(7, shard=True), ROLES)
    assert caught.value.hint == "write more files, or set `data.d.rest: drop` to leave 1 out"
    assert [len(p) for p in parts(dataset(7, shard=True, rest="drop"), ROLES)] == [2, 2, 2, 0]
    with pytest.raises(UsageError, match="2 files cannot be divided into 3 equal"):
        parts(dataset(2, shard=True, rest="drop"), ROLES)


def test_plan_says_that_the_script_must_not_shard_again() -> None:
    found = data_notes(config(d=DataSource(source="gs://bucket/d", shard=True)))
    assert found == (
        "data.d: each of 3 nodes (chief, worker) gets 1 of every 3 files; evaluator get none of "
        "it: the script must not shard it again (AutoShardPolicy.OFF)",
        "data (d): size and transfer cost are known after `check`",
    )
    assert data_notes(config()) == ()


# ── file:// ──────────────────────────────────────────────────────────────────


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_links_are_followed_to_files_and_folders(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    write(data, a="1")
    write(other, b="22", c__d="333")
    (data / "file").symlink_to(other / "b")
    (data / "folder").symlink_to(other / "c")
    found = listed(of_folder(data))
    assert [(f.path, f.size) for f in found.files] == [("a", 1), ("file", 2), ("folder/d", 3)]


def broken(data: Path) -> None:
    (data / "x").symlink_to(data / "nowhere")


def loop(data: Path) -> None:
    (data / "sub").mkdir()
    (data / "sub" / "x").symlink_to(data)


def pipe(data: Path) -> None:
    os.mkfifo(data / "x")


def odd(data: Path) -> None:
    (data / "x\ny").write_text("1")


def not_text(data: Path) -> None:
    Path(os.fsdecode(bytes(data) + b"/x\xff")).write_text("1")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (broken, "/x: this link is broken"),
        (loop, "/sub/x: this link leads back to a folder that it is in"),
        (pipe, "/x: is not a regular file"),
        (odd, r"x\\ny': its name contains a control character"),
        (not_text, r"x\\udcff': its name is not valid UTF-8"),
    ],
)
def test_what_cannot_be_a_file_of_a_node_is_refused_with_its_name(
    tmp_path: Path, make: Callable[[Path], None], text: str
) -> None:
    make(tmp_path)
    with pytest.raises(StoreError, match=r"^data\.d: .*" + text):
        listed(of_folder(tmp_path))


def test_a_folder_that_does_not_exist_or_is_empty_has_no_object(tmp_path: Path) -> None:
    (tmp_path / "empty" / "below").mkdir(parents=True)
    for name in ("none", "empty"):
        with pytest.raises(StoreError, match=rf"no object under file://.*/{name}$"):
            listed(of_folder(tmp_path / name))


def test_a_file_that_changes_while_it_is_read_is_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, a="1" * 3_000_000)
    made = of_folder(tmp_path)
    found = listed(made)
    reading = DataSigner(found, open_source(made, "d")).read(found.files[0])
    next(reading)
    write(tmp_path, a="2" * 3_000_000)
    with pytest.raises(StoreError, match="changed since it was listed"):
        list(reading)


# ── findings ─────────────────────────────────────────────────────────────────


def test_check_names_files_and_sizes_by_node(tmp_path: Path) -> None:
    write(tmp_path, a="1" * 1500, b="2", c="3")
    uri = tmp_path.as_uri()
    made = config(
        all=DataSource(source=uri),
        part=DataSource(source=uri, shard=True),
        one=DataSource(source=f"{uri}/a", role="chief"),
    )
    assert [(f.what, f.ok, f.text) for f in checked_data(make_plan(made)).findings] == [
        ("data.all", True, "3 files, 1.5 kB, one copy for 4 nodes of this machine"),
        ("data.part", True, "3 files, 1.5 kB: at most 1.5 kB on each of 3 nodes"),
        ("data.one", True, "1 file, 1.5 kB on each of 1 node"),
    ]
    assert checked_data(make_plan(config())).findings == ()


def test_check_says_what_goes_through_this_machine(tmp_path: Path) -> None:
    write(tmp_path, a="1" * 1000)
    made = replace(of_folder(tmp_path), provider="hosts")
    [found] = checked_data(make_plan(made)).findings
    assert found.ok
    assert found.text == (
        "1 file, 1.0 kB on each of 4 nodes, 4.0 kB in all; nodes cannot read it themselves: it "
        "goes through this machine"
    )


def test_missing_data_is_a_finding_with_the_exit_code_of_the_config(tmp_path: Path) -> None:
    [found] = checked_data(make_plan(of_folder(tmp_path / "none"))).findings
    assert (found.what, found.ok, found.error) == ("data.d", False, DataError)
    assert DataError.exit_code == 2
    assert found.text == f"no object under {(tmp_path / 'none').as_uri()}"
    assert found.hint == "check the URI"


def test_a_finding_names_its_dataset_once(tmp_path: Path) -> None:
    write(tmp_path, a="1", b="2")
    shards = DataSource(source=tmp_path.as_uri(), shard=True)
    unknown = DataSource(source="ftp://host/x")
    findings = checked_data(make_plan(config(d=shards, e=unknown))).findings
    assert [(each.what, each.text) for each in findings] == [
        ("data.d", "2 files cannot be divided into 3 equal shards"),
        ("data.e", "ftp://host/x: unknown kind of store"),
    ]


def test_a_folder_without_the_right_to_read_it_is_a_refusal_with_exit_code_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    [found] = checked_data(make_plan(of_folder(tmp_path))).findings
    assert (found.ok, found.error) == (False, PermissionsError)
    assert found.text == f"{tmp_path}: Permission denied"


# ── fit and cost ─────────────────────────────────────────────────────────────


def rented(**group: object) -> Plan:
    made = ClusterConfig(
        name="m",
        provider="gcp",
        strategy="multi_worker_mirrored",
        nodes={"chief": NodeGroup(), "worker": NodeGroup(count=2, **group)},  # type: ignore[arg-type]
        placement=("us-east4-c",),
    )
    return make_plan(made)


def big(size: int) -> tuple[DataFile, ...]:
    return (DataFile(path="x", size=size, version="1"),)


def test_data_that_does_not_fit_a_rented_disk_is_refused_by_role() -> None:
    plan = rented(disk_gb=100, accelerator=Accelerator(kind="T4"))
    fits = {"d": (big(40 * GB), big(75 * GB), big(75 * GB))}
    assert too_small(plan, fits) == ()
    both = {**fits, "e": (big(10 * GB), big(1), big(1))}
    assert too_small(plan, both) == (
        "nodes.chief: 50.0 GB of data do not fit its disk of 50 GB, of which the system takes 6 or "
        "more: set disk_gb to 66 or more",
        "nodes.worker: 75.0 GB of data do not fit its disk of 100 GB, of which the system takes "
        "25 or more: set disk_gb to 111 or more",
    )


@pytest.mark.parametrize(
    ("provider", "place", "machine", "known"),
    [
        ("aws", "us-east-1", "m6i.xlarge", True),
        ("aws", "us-east-1", "m6id.xlarge", False),
        ("aws", "us-east-1", "g4dn.xlarge", False),
        ("azure", "eastus", "Standard_D4s_v5", True),
        ("azure", "eastus", "Standard_D4ds_v5", False),
        ("azure", "eastus", "Standard_NC4as_T4_v3", False),
    ],
)
def test_a_machine_that_may_have_a_local_disk_is_left_to_the_node(
    provider: str, place: str, machine: str, known: bool
) -> None:
    made = ClusterConfig(
        name="m",
        provider=provider,
        strategy="one_device",
        nodes={"chief": NodeGroup(machine=machine)},
        placement=(place,),
    )
    assert bool(too_small(make_plan(made), {"d": (big(500 * GB),)})) is known


@pytest.mark.parametrize(
    ("scratch", "size", "fits"), [(600, 500, True), (125, 500, False), (0, 20, True)]
)
def test_a_local_disk_counts_with_its_size_once_the_cloud_has_told_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scratch: int, size: int, fits: bool
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path))
    told = MachineFacts(
        name="m6id.xlarge", vcpus=4, memory_gib=16.0, accelerator=None, scratch_gb=scratch
    )
    reported.learn("aws", [told])
    made = ClusterConfig(
        name="m",
        provider="aws",
        strategy="one_device",
        nodes={"chief": NodeGroup(machine="m6id.xlarge")},
        placement=("us-east-1",),
    )
    found = too_small(make_plan(made), {"d": (big(size * GB),)})
    assert (not found) is fits
    assert fits or f"nor its local disks of {scratch} GB" in found[0]


def test_nodes_of_this_machine_share_its_disk(tmp_path: Path) -> None:
    plan = make_plan(config())
    one = big(10**18)
    assert len(too_small(plan, {"d": (one, one, one, one)})) == 1
    assert too_small(plan, {"d": (big(1), big(1), big(1), ())}) == ()


@pytest.mark.parametrize(
    ("uri", "location", "expected"),
    [
        ("gs://bucket/d", "us-east4", "egress is free within us-east4"),
        ("gs://bucket/d", "us", "egress is free within us"),
        ("gs://bucket/d", "europe-west4", "about 2.00 $ for egress from europe-west4 (estimate)"),
        ("gs://bucket/d", "", "egress is free within one region, else about 2.00 $ (estimate)"),
        ("s3://bucket/d", "us-east-1", "about 9.00 $ for egress from AWS (estimate)"),
        ("az://account/c/d", "", "about 8.70 $ for egress from Azure (estimate)"),
        ("file:///d", "", ""),
        ("https://example.org/d", "", ""),
    ],
)
def test_the_cost_of_a_transfer_is_estimated(uri: str, location: str, expected: str) -> None:
    assert transfer_cost(rented().config, uri, location, 100 * GB) == expected


def test_of_several_places_those_without_egress_are_named() -> None:
    made = replace(rented().config, placement=("us-east4-c", "us-central1"))
    text = transfer_cost(made, "gs://bucket/d", "us-central1", 100 * GB)
    assert text == "egress is free in us-central1, else about 2.00 $ (estimate)"


def test_nodes_of_no_cloud_read_over_the_internet() -> None:
    assert transfer_cost(config(), "gs://bucket/d", "us", 1000) == (
        "about 0.01 $ for egress from GCP (estimate)"
    )


def test_a_store_of_the_users_own_has_no_price() -> None:
    own = replace(
        config(),
        endpoints=Endpoints(storage="https://minio.example.org"),
        artifacts=ArtifactRules(store="s3://bucket/x"),
    )
    assert transfer_cost(own, "s3://bucket/d", "", 100 * GB) == ""
    assert transfer_cost(own, "gs://bucket/d", "", 100 * GB) != ""


def test_rates_for_each_gb_by_where_data_and_store_are() -> None:
    made = rented().config
    reads = {"own": DataSource(source="gs://bucket/d"), "other": DataSource(source="s3://bucket/d")}
    assert str(reading_rate(replace(made, data={"own": reads["own"]}))) == "0 to 0.02 $/GB"
    assert str(reading_rate(replace(made, data={"other": reads["other"]}))) == "0.09 $/GB"
    assert str(reading_rate(replace(made, data=reads))) == "0 to 0.09 $/GB"
    here = {"here": DataSource(source="file:///d")}
    assert reading_rate(replace(made, data=here)) is None
    stores = {"gs://bucket/x": "0 to 0.02 $/GB", "s3://bucket/x": "0.12 $/GB", None: "0.12 $/GB"}
    for store, rate in stores.items():
        config = replace(made, artifacts=ArtifactRules(store=store))
        assert str(landing_rate(config)) == rate
    assert landing_rate(replace(made, provider="local")) is None


def test_the_cost_of_a_transfer_is_a_finding_of_each_place() -> None:
    traffic = Traffic(name="d", uri="gs://bucket/d", location="us-central1", size=100 * GB)
    made = replace(rented().config, artifacts=ArtifactRules(store="gs://bucket/x"))
    aws = replace(made, provider="aws", placement=("us-east-1",))
    found = [*egress_finding(made, [traffic]), *egress_finding(aws, [traffic])]
    assert {each.what for each in found} == {"egress"}
    assert [each.text for each in found] == [
        "data.d: about 2.00 $ for egress from us-central1 (estimate); "
        "artifacts: 0 to 0.02 $/GB (estimate)",
        "data.d: about 12.00 $ for egress from GCP (estimate); artifacts: 0.09 $/GB (estimate)",
    ]
    assert egress_finding(config(), []) == ()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (234 * 10**6, "234 MB"), (5e13, "50.0 TB")],
)
def test_sizes_are_in_decimal_units(size: float, text: str) -> None:
    assert size_text(size) == text
