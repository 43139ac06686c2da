"""A user's own defaults fill in what a cluster's file leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import cloudtrain
from cloudtrain.cli.app import cli
from cloudtrain.config import defaults_path, from_json, load, to_json
from cloudtrain.config.additions import ONLY_TYPED
from cloudtrain.config.location import place_in_file
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig

GCP = """\
provider: gcp
placement: [us-central1]
strategy: multi_worker_mirrored
nodes: {chief: {machine: n1-standard-8}, worker: {machine: n1-standard-8}}
"""
LOCAL = "provider: local\nstrategy: mirrored\n"
HOSTS = "provider: hosts\nstrategy: mirrored\nhosts: [{address: 10.0.0.4, role: chief}]\n"
DEFAULTS = """\
provider: gcp
project: my-project
artifacts:
  store: gs://my-bucket/runs
network: {ssh_from: 203.0.113.0/24}
limits:
  max_price: 20
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)


def read(text: str, defaults: str, *overrides: str, **environ: str) -> ClusterConfig:
    Path("c.yaml").write_text(text)
    Path("d.yaml").write_text(defaults)
    return load(Path("c.yaml"), environ, overrides=overrides, defaults=Path("d.yaml"))


def problems(defaults: str, text: str = GCP, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, defaults, **environ)
    return str(caught.value).splitlines()


def test_fields_that_the_file_leaves_out_come_from_the_defaults() -> None:
    config = read(GCP, DEFAULTS)
    assert config.project == "my-project"
    assert config.artifacts.store == "gs://my-bucket/runs"
    assert config.network.ssh_from == "203.0.113.0/24"
    assert config.limits.max_price == 20
    assert config.defaults == {
        "project": "d.yaml:2",
        "artifacts.store": "d.yaml:4",
        "network.ssh_from": "d.yaml:5",
        "limits.max_price": "d.yaml:7",
    }
    assert from_json(to_json(config)) == config


def test_what_the_file_or_the_command_line_says_counts_before_the_defaults() -> None:
    text = f"{GCP}project: mine\nartifacts: {{every: 5m}}\nlimits: {{max_price: 3}}\n"
    config = read(text, DEFAULTS, "network.ssh_from=auto")
    assert (config.project, config.limits.max_price) == ("mine", 3)
    assert config.network.ssh_from == "auto"
    assert (config.artifacts.every, config.artifacts.store) == (300, "gs://my-bucket/runs")
    assert list(config.defaults) == ["artifacts.store"]


def test_tags_of_the_defaults_are_added_to_those_of_the_file_on_any_cloud() -> None:
    own = "tags:\n  cost-center: '4711'\n  team: nobody\n"
    config = read(f"{GCP}tags: {{team: vision}}\n", own)
    assert config.tags == {"team": "vision", "cost-center": "4711"}
    assert config.defaults == {"tags.cost-center": "d.yaml:2"}
    assert read(HOSTS, own).tags == {}


def test_a_project_of_the_environment_counts_before_that_of_the_defaults() -> None:
    config = read(GCP, DEFAULTS, GOOGLE_CLOUD_PROJECT="theirs")
    assert config.project == "theirs"
    assert "project" not in config.defaults


def test_fields_of_one_cloud_do_not_reach_another_and_hosts_get_what_they_can_use() -> None:
    aws = read(GCP.replace("gcp", "aws").replace("us-central1", "us-east-1"), DEFAULTS)
    assert (aws.project, aws.network.ssh_from) == (None, "203.0.113.0/24")
    hosts = read(HOSTS, DEFAULTS)
    assert list(hosts.defaults) == ["artifacts.store", "limits.max_price"]


def test_a_local_cluster_takes_nothing_so_that_it_needs_no_account() -> None:
    assert read(LOCAL, DEFAULTS) == read(LOCAL, "")


def test_a_provider_that_the_file_leaves_out_is_that_of_the_defaults() -> None:
    config = read(GCP.removeprefix("provider: gcp\n"), DEFAULTS)
    assert config.provider == "gcp"
    assert config.defaults["provider"] == "d.yaml:1"


def test_an_empty_file_or_none_has_no_defaults(tmp_path: Path) -> None:
    assert read(GCP, "") == load(Path("c.yaml"), {}, defaults=tmp_path / "none.yaml")
    with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
        load(Path("c.yaml"), {}, defaults=tmp_path)


@pytest.mark.parametrize(
    ("defaults", "problem"),
    [
        ("artifacts:\n  sotre: x", "2: artifacts.sotre: unknown field: did you mean 'store'?"),
        ("limits: {max_price: x}", "1: limits.max_price: must be "),
        ("artifacts: {store: '${NOT_SET}'}", "1: artifacts.store: the environment variable NOT_S"),
        ("name: mnist", "1: name: belongs in each cluster's own file; a default can be provider"),
        ("nodes: {worker: {count: 3}}", "1: nodes.worker: belongs in each cluster's own file"),
        ("secrets: {A: '${A}'}", "1: secrets.A: belongs in each cluster's own file"),
        ("limits: {idle: 5m}\nproject: p", "2: project: is of one cloud: add `provider:` beside"),
        ("- a", "1: must contain `field: value` lines"),
        *(
            (f"{name}: true", f"1: {name}: no defaults file may stand for --{name}: ")
            for name in ONLY_TYPED
        ),
    ],
)
def test_what_is_wrong_in_the_defaults_is_reported_at_its_line(defaults: str, problem: str) -> None:
    (found,) = problems(defaults)
    assert found.startswith(f"d.yaml:{problem}")


def test_the_place_of_a_default_is_its_line_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_CONFIG", "d.yaml")
    read(GCP, DEFAULTS)
    config = cloudtrain.load("c.yaml")
    assert config.defaults["limits.max_price"] == f"{Path.cwd()}/d.yaml:7"
    assert place_in_file(config, "limits.max_price") == f"{Path.cwd()}/d.yaml:7"
    assert place_in_file(config, "placement") == "c.yaml:2"


def test_plan_shows_what_came_from_the_defaults_and_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_CONFIG", "d.yaml")
    read(GCP, DEFAULTS)
    shown = CliRunner().invoke(cli, ["plan", "c.yaml", "--set", "limits.idle=1h"]).output
    assert "  set        limits.idle=1h\n" in shown
    assert f"  default    limits.max_price, from {Path.cwd()}/d.yaml:7\n" in shown


def test_the_file_is_in_the_folder_for_settings_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CLOUDTRAIN_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert defaults_path().name == "config.yaml"
    assert defaults_path().parent.name == "cloudtrain"
