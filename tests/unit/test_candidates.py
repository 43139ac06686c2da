"""`any_of:` and `ordered:`: what each candidate makes of the file, and in which order they come."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cloudtrain import catalog
from cloudtrain.cli.app import cli
from cloudtrain.cluster import place_choice
from cloudtrain.cluster.place_choice import choices, cluster_offers, each_account, settle, standing
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import Handle, record_cluster
from cloudtrain.commands.plan import plan_report
from cloudtrain.config import from_json, load, load_again, to_json, with_candidate
from cloudtrain.config.location import location_of, place_in_file
from cloudtrain.core.errors import CapacityError, ConfigError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.retry import Retry
from cloudtrain.rehearsal.fault_trial import local_config
from cloudtrain.state import Records
from tests.support.landing_parts import Heard

GCP: dict[str, Any] = {"provider": "gcp", "placement": ["us-central1", "us-east4"]}
AWS: dict[str, Any] = {
    "provider": "aws",
    "placement": ["us-east-1"],
    "nodes": {"worker": {"machine": "g4dn.xlarge"}},
}
FILE: dict[str, Any] = {
    "name": "mnist",
    "strategy": "multi_worker_mirrored",
    "nodes": {"chief": False, "worker": {"count": 2, "accelerator": "T4:1"}},
    "train": {"command": "python train.py"},
}


def write(folder: Path, **changes: Any) -> Path:
    tree = {name: value for name, value in {**FILE, **changes}.items() if value is not None}
    path = folder / "mnist.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def problems(folder: Path, **changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(write(folder, **changes), {})
    return [f"{problem.field}: {problem.text}" for problem in caught.value.problems]


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    return load(write(tmp_path, any_of=[GCP, AWS]), {"GOOGLE_CLOUD_PROJECT": "mine"})


# ── The file ─────────────────────────────────────────────────────────────────


def test_each_candidate_reads_the_file_with_its_own_values(config: ClusterConfig) -> None:
    assert [each.provider for each in config.candidates] == ["gcp", "aws"]
    gcp, aws = (with_candidate(config, each) for each in config.candidates)
    assert (gcp.project, aws.project) == ("mine", None)
    assert str(gcp.nodes["worker"].accelerator) == "T4:1"
    assert (aws.nodes["worker"].machine, aws.nodes["worker"].accelerator) == ("g4dn.xlarge", None)
    assert (gcp.nodes["worker"].count, aws.nodes["worker"].count) == (2, 2)
    assert gcp.train == aws.train
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def test_a_candidate_merges_sections_and_keeps_what_it_does_not_say(tmp_path: Path) -> None:
    own = {**GCP, "network": {"subnet": "mine"}, "image": "ubuntu-24.04"}
    config = load(write(tmp_path, any_of=[own, AWS], network={"private": True}), {})
    gcp, aws = config.candidates
    assert (gcp.network.subnet, gcp.network.private) == ("mine", True)
    assert (aws.network.subnet, aws.network.private) == (None, True)
    assert (gcp.image, aws.image) == ("ubuntu-24.04", "auto")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"any_of": [GCP], "ordered": [AWS]},
            "ordered: conflicts with `any_of`: use one of the two",
        ),
        (
            {"any_of": []},
            "any_of: lists no candidates: `- {provider: gcp, placement: [us-central1]}`",
        ),
        ({"any_of": [GCP], "provider": "gcp"}, "provider: conflicts with `any_of`: it is in each"),
        (
            {"ordered": [GCP], "placement": ["x"]},
            "placement: conflicts with `ordered`: it is in each",
        ),
        (
            {"any_of": [GCP], "hosts": [{"address": "a", "role": "worker"}]},
            "hosts: conflicts with `any_of`: it is not for candidates, which are rented",
        ),
        (
            {"any_of": [{**GCP, "provider": "local"}]},
            "any_of[0].provider: must be a cloud: gcp, aws, azure",
        ),
        (
            {"any_of": [GCP, AWS], "project": "p"},
            "project: means something in one cloud only, and the candidates are of aws, gcp: put it"
            " into each",
        ),
        (
            {"any_of": [GCP, {**AWS, "nodes": {"ps": {"machine": "m5.large"}}}]},
            "any_of[1].nodes.ps: is not a role of `nodes`",
        ),
        (
            {"any_of": [{**GCP, "placement": []}]},
            "any_of[0].placement: is missing: provider gcp needs a zone or region",
        ),
        (
            {"any_of": [GCP, AWS], "away": {"identity": "desk"}},
            "away: needs candidates of one cloud, in which its identity is: these are of aws, gcp",
        ),
        (
            {"any_of": [{**AWS, "identity": "not one!"}]},
            "any_of[0].identity: must be the name or ARN of an instance profile, such as trainer",
        ),
        (
            {"any_of": "gcp"},
            "any_of: must be a list: [one, two], or a line with `- ` for each, not 'gcp'",
        ),
        ({"any_of": None}, "provider: is missing"),
        (
            {"any_of": [GCP, AWS], "nodes": {"worker": {"count": 2}}},
            "nodes.chief: is missing: one node must be the chief, which saves the model (`chief:"
            " false`: worker 0 does)",
        ),
        (
            {"any_of": [GCP], "nodes": {"ps": {"count": 1}, "worker": {"count": 2}}},
            "nodes.ps: strategy multi_worker_mirrored has no such role: with a ps, the chief would"
            " wait forever (ps is for parameter_server)",
        ),
    ],
)
def test_what_is_wrong_with_candidates(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert expected in problems(tmp_path, **changes)


def test_a_fault_beside_the_list_is_reported_once(tmp_path: Path) -> None:
    found = problems(tmp_path, any_of=[GCP, AWS], secrets={"A": "plain"})
    assert found == ["secrets.A: a secret must be exactly ${VAR}, without a default or other text"]


def test_a_provider_that_is_none_is_not_missing_too(tmp_path: Path) -> None:
    found = problems(tmp_path, any_of=[{**GCP, "provider": "gpc"}, AWS])
    assert found == [
        "any_of[0].provider: must be one of gcp, aws, azure, local, hosts, not 'gpc': did you mean"
        " 'gcp'?"
    ]


def test_set_reaches_into_a_candidate(tmp_path: Path) -> None:
    path = write(tmp_path, any_of=[GCP, AWS])
    config = load(path, {}, overrides=["any_of[1].placement=[us-west-2]"])
    assert config.candidates[1].placement == ("us-west-2",)


def test_the_users_defaults_do_not_choose_a_cloud_for_a_file_with_candidates(
    tmp_path: Path,
) -> None:
    defaults = tmp_path / "defaults.yaml"
    defaults.write_text("provider: azure\nproject: theirs\nlimits: {max_price: 9}\n")
    config = load(write(tmp_path, any_of=[GCP, AWS]), {}, defaults=defaults)
    assert [each.project for each in config.candidates] == [None, None]
    assert config.limits.max_price == 9
    assert list(config.defaults) == ["limits.max_price"]


def test_the_line_of_a_field_is_that_of_its_candidate(config: ClusterConfig) -> None:
    aws = with_candidate(config, config.candidates[1])
    lines = Path(config.source).read_text().splitlines()
    machine = next(n for n, line in enumerate(lines, 1) if "g4dn" in line)
    count = next(n for n, line in enumerate(lines, 1) if "count: 2" in line)
    for field, line in (("nodes.worker.machine", machine), ("nodes.worker.count", count)):
        place = location_of(aws, field)
        assert place is not None
        assert place.line == line
        assert place_in_file(aws, field) == str(place)
    assert load_again(aws).provider == "aws"


def test_a_rehearsal_has_no_candidates(config: ClusterConfig) -> None:
    local = local_config(settle(config), "file:///tmp/x", setup_run=False)
    assert (local.provider, local.candidates) == ("local", ())


# ── Offers ───────────────────────────────────────────────────────────────────


def words(config: ClusterConfig) -> list[str]:
    return [f"{each.plan.config.provider} {each.place}" for each in cluster_offers(config)]


def test_offers_come_by_price_and_unknown_prices_last(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = {"us-central1": 0.5, "us-east4": None, "us-east-1": 0.4}

    def price(_cloud: str, _node: Any, place: str) -> tuple[float | None, Any]:
        return prices[place], None

    monkeypatch.setattr(catalog, "price_and_date", price)
    monkeypatch.setattr(catalog, "highest_price", lambda *given: price(*given)[0])
    assert words(config) == ["aws us-east-1", "gcp us-central1", "gcp us-east4"]
    prices.update({"us-east-1": None, "us-east4": 0.45})
    assert words(config) == ["gcp us-east4", "gcp us-central1", "aws us-east-1"]


def test_an_upper_bound_comes_after_prices_and_before_none(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = {"us-central1": 0.5, "us-east4": None, "us-east-1": None}
    most = {"us-central1": 0.5, "us-east4": None, "us-east-1": 0.1}
    monkeypatch.setattr(catalog, "price_and_date", lambda _c, _n, place: (exact[place], None))
    monkeypatch.setattr(catalog, "highest_price", lambda _c, _n, place: most[place])
    assert words(config) == ["gcp us-central1", "aws us-east-1", "gcp us-east4"]


def test_ordered_candidates_come_as_written(tmp_path: Path) -> None:
    config = load(write(tmp_path, ordered=[AWS, GCP]), {})
    assert words(config) == ["aws us-east-1", "gcp us-central1", "gcp us-east4"]


def test_places_of_one_candidate_that_follow_each_other_are_tried_together(
    tmp_path: Path,
) -> None:
    config = load(write(tmp_path, ordered=[GCP, AWS, {**GCP, "placement": ["us-west1"]}]), {})
    found = [(each.provider, each.placement) for each in choices(config)]
    assert found == [
        ("gcp", ("us-central1", "us-east4")),
        ("aws", ("us-east-1",)),
        ("gcp", ("us-west1",)),
    ]
    plain = replace(config, candidates=())
    assert choices(plain) == (plain,)


def test_a_candidate_that_no_cloud_sells_is_not_the_planned_one(tmp_path: Path) -> None:
    odd = {**AWS, "nodes": {"worker": {"machine": "p2.xlarge"}}}  # K80, retired
    config = settle(load(write(tmp_path, ordered=[odd, GCP]), {}))
    assert (config.provider, config.placement) == ("gcp", ("us-central1",))
    first, *_ = plan_report(make_plan(config)).offers
    assert "retired" in first.refused


def test_an_offer_over_max_price_says_so(tmp_path: Path) -> None:
    config = settle(load(write(tmp_path, any_of=[GCP, AWS], limits={"max_price": 0.01}), {}))
    refused = [each.refused for each in plan_report(make_plan(config)).offers]
    assert all("more than limits.max_price: 0.01 $/hour" in text for text in refused)


# ── The record ───────────────────────────────────────────────────────────────


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_file_means_the_candidate_in_which_its_cluster_is(
    home: Path, config: ClusterConfig
) -> None:
    assert standing(config) is None
    assert len(each_account(config)) == 2
    aws = replace(with_candidate(config, config.candidates[1]))
    records = Records("mnist")
    record_cluster(aws, records)
    assert settle(config).provider == "aws"
    assert each_account(config) == (config,)
    gcp = replace(with_candidate(config, config.candidates[0]), placement=("us-east4",))
    record_cluster(gcp, records)
    assert settle(config).placement == ("us-central1", "us-east4")
    records.close()
    assert standing(config) is None


def test_a_record_of_another_account_is_no_candidate(home: Path, config: ClusterConfig) -> None:
    record_cluster(replace(config, project="another"), Records("mnist"))
    assert standing(config) is None


# ── What is shown ────────────────────────────────────────────────────────────


def test_plan_lists_the_offers_in_their_order(home: Path, tmp_path: Path) -> None:
    path = write(tmp_path, ordered=[AWS, GCP])
    done = CliRunner().invoke(cli, ["plan", str(path)])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()[1:5]
    assert [line[:32].rstrip() for line in lines] == [
        "  ordered     1  aws us-east-1",
        "              2  gcp us-central1",
        "              3  gcp us-east4",
        "  planned    aws us-east-1",
    ]
    assert all("$/hour" in line for line in lines[:3])
    assert ["prices of 2026-01-19" in line for line in lines[:3]] == [True, False, False]


def test_each_offer_says_what_a_gb_costs_to_read_and_to_land_there(
    home: Path, tmp_path: Path
) -> None:
    store = {"store": "gs://bucket/mnist"}
    path = write(tmp_path, ordered=[AWS, GCP], data={"d": "gs://bucket/d"}, artifacts=store)
    lines = CliRunner().invoke(cli, ["plan", str(path)]).output.splitlines()[1:4]
    assert [line.partition("egress: ")[2] for line in lines] == [
        "data 0.12 $/GB, artifacts 0.09 $/GB",
        *["data 0 to 0.02 $/GB, artifacts 0 to 0.02 $/GB"] * 2,
    ]


def test_up_asks_with_the_first_and_the_highest_price(home: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["up", str(write(tmp_path, any_of=[GCP, AWS]))])
    assert "or on the next of 3 offers that has room, at most " in done.output


@pytest.mark.parametrize("wait", ["soon", "0", "-1h", "900d", "1w"])
def test_a_wait_is_a_duration(wait: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["up", str(write(tmp_path, any_of=[GCP])), f"--wait={wait}"])
    assert done.exit_code == 2
    assert "is not a duration such as 30m or 6h" in done.output


def test_a_wait_says_in_one_line_what_the_last_candidate_lacked(
    home: Path, config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_choice, "ROUNDS", Retry(pause=0.0, tries=2))
    console = Heard()

    def full(here: Handle, _: object) -> None:
        raise CapacityError(f"no room\nin any zone of {here.config.provider}")

    with pytest.raises(CapacityError, match="no candidate can provide the nodes"):
        place_choice.in_first_with_room(Handle(config), full, full, console, wait=60.0)
    (waited,) = [text for text in console.warned if text.startswith("no room: ")]
    assert "provide the nodes" not in waited
    assert waited.count("no room in any zone of") == 1
