"""`--set` and `--env-file`: values from the command line that count as part of the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import cloudtrain
from cloudtrain.cli.app import COMMANDS, cli
from cloudtrain.cluster.drift import override_notes
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import plan_report
from cloudtrain.config import from_json, load, read_secrets, to_json
from cloudtrain.config.location import place_in_file
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.state import Records

FILE = """\
provider: gcp
placement: [us-central1]
strategy: multi_worker_mirrored
nodes:
  chief: {machine: n1-standard-8}
  worker: {count: 2, machine: n1-standard-8}
train: {command: python train.py}
"""
HOSTS = """\
provider: hosts
strategy: custom
hosts:
  - {address: 10.0.0.4, role: chief}
  - {address: 10.0.0.5, role: worker}
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str, *overrides: str, env_file: str | None = None, **environ: str) -> ClusterConfig:
    Path("c.yaml").write_text(text)
    path = Path(env_file) if env_file else None
    return load(Path("c.yaml"), environ, overrides=overrides, env_file=path)


def problems(text: str, *overrides: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, *overrides, **environ)
    return str(caught.value).splitlines()


def command(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_a_value_that_is_set_counts_as_if_the_file_said_so() -> None:
    config = read(
        FILE,
        "nodes.worker.count=4",
        "nodes.worker.spot=true",
        "train.command=python other.py --a=b: 'c' # d",
        "train.env.BATCH=0064",
        "artifacts.paths=[output/**, logs/*.txt]",
        "limits={idle: 30m}",
        'code.path="{here}"',
    )
    assert (config.nodes["worker"].count, config.nodes["worker"].spot) == (4, True)
    assert config.nodes["worker"].machine == "n1-standard-8"
    assert config.train.command == "python other.py --a=b: 'c' # d"
    assert config.train.env == {"BATCH": "0064"}
    assert config.artifacts.paths == ("output/**", "logs/*.txt")
    assert config.limits.idle == 1800
    assert config.code.path == "{here}"


def test_the_last_value_of_a_field_counts_and_an_empty_one_leaves_it_out() -> None:
    config = read(FILE, "nodes.worker.count=3", "nodes.worker.count=5", "nodes.chief.machine=")
    assert config.nodes["worker"].count == 5
    assert config.nodes["chief"].machine is None


def test_an_entry_of_a_list_is_set_by_its_number() -> None:
    config = read(HOSTS, "hosts[1].address=10.0.0.9", "hosts[0].port=2222")
    assert [(host.address, host.port) for host in config.hosts] == [
        ("10.0.0.4", 2222),
        ("10.0.0.9", 22),
    ]


def test_only_the_named_one_of_two_roles_that_share_their_fields_changes() -> None:
    text = FILE.replace("chief: {machine: n1-standard-8}", "chief: &a {machine: n1-standard-8}")
    config = read(text.replace("{count: 2, machine: n1-standard-8}", "*a"), "nodes.worker.count=3")
    assert (config.nodes["chief"].count, config.nodes["worker"].count) == (1, 3)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("nodes.worker.count=x", "nodes.worker.count: must be a whole number from 1 to 1000, not"),
        ("nodes.worker.cuont=4", "nodes.worker.cuont: unknown field: did you mean 'count'?"),
        ("nodes.worker={cuont: 4}", "nodes.worker.cuont: unknown field: did you mean 'count'?"),
        ("nodse.worker.count=4", "nodse: unknown field: did you mean 'nodes'?"),
        ("provider=gpc", "provider: "),
        ("nodes.worker.count", "nodes.worker.count: must be FIELD=VALUE, such as"),
        ("=4", ": must be FIELD=VALUE"),
        ("nodes..count=4", "nodes..count: must be FIELD=VALUE"),
        ("placement[1]=a", "placement[1]: placement has 1 of them, from [0] on (c.yaml:2)"),
        ("nodes[0]=a", "nodes[0]: nodes is not a list (c.yaml:5)"),
        ("placement.a=b", "placement.a: placement is a list, without fields of its own (c.yaml:2)"),
        ("train.command.ps=x", "train.command.ps: train.command is one value, without fields"),
        ("placement=[a", "placement: is not valid YAML: while parsing a flow sequence"),
        ("train.command={output}/x", "train.command: is not valid YAML: "),
        ("train.env.A=${HOME", "train.env.A: has a ${ that is not ${VAR}"),
        ("train.env.A=${NOT_SET}", "train.env.A: the environment variable NOT_SET is not set"),
    ],
)
def test_a_wrong_value_is_reported_by_its_flag_as_one_of_the_file_is(
    override: str, text: str
) -> None:
    assert problems(FILE, override)[0].startswith(f"--set {text}")


def test_every_wrong_value_is_reported_beside_the_files_own() -> None:
    found = problems(FILE.replace("count: 2", "count: none"), "strategy=x", "nodes.chief.spot=3")
    assert [line.partition(": ")[0] for line in found] == [
        "--set strategy",
        "--set nodes.chief.spot",
        "c.yaml:6",
    ]


@pytest.mark.parametrize("override", ["secrets.TOKEN=hunter2", "secrets={TOKEN: hunter2}"])
def test_a_secret_is_refused_and_not_repeated(override: str) -> None:
    (found,) = problems(FILE, override)
    assert found.startswith("--set secrets")
    assert "--env-file" in found
    assert "hunter2" not in found


def test_a_secret_of_the_file_is_refused_where_it_would_be_shown() -> None:
    found = problems(f"{FILE}secrets: {{T: '${{TOKEN}}'}}\n", "train.env.A=${TOKEN}", TOKEN="x")
    assert found == [
        "--set train.env.A: TOKEN is listed under `secrets`, and may be used only there"
    ]


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_a_value_or_a_problem(field: str, value: str) -> None:
    Path("any.yaml").write_text(FILE)
    found: tuple[Problem, ...] = ()
    try:
        load(Path("any.yaml"), {}, overrides=(f"{field}={value}", f"train.env.A={value}"))
    except ConfigError as error:
        found = tuple(error.problems)
    assert {problem.file for problem in found} <= {"--set"}


# ── the record ───────────────────────────────────────────────────────────────


def recorded(config: ClusterConfig) -> None:
    Records(config.name).create()
    Records(config.name).save_config(to_json(config))


def test_the_record_keeps_what_was_set_without_the_values_of_variables() -> None:
    config = read(FILE, "train.env.A=${WHO}", WHO="me")
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    assert config.overrides == ("train.env.A=${WHO}",)


def test_a_later_call_without_the_value_is_told_so() -> None:
    recorded(read(FILE, "nodes.worker.count=4", "train.max_restarts=2"))
    later = read(FILE, "train.max_restarts=3")
    assert override_notes(later) == (
        "c was last used with --set nodes.worker.count=4, which this call does not give: "
        "c.yaml:6 counts",
    )
    assert plan_report(make_plan(later)).differs[0] == override_notes(later)[0]


def test_a_later_call_is_told_nothing_where_it_gives_the_value_or_the_file_has_it() -> None:
    recorded(read(FILE, "nodes.worker.count=4"))
    assert override_notes(read(FILE, "nodes.worker.count=4")) == ()
    assert override_notes(read(FILE, "nodes.worker.count=5")) == ()
    assert override_notes(read(FILE.replace("count: 2", "count: 4"))) == ()
    Records("c").close()
    assert override_notes(read(FILE)) == ()


def test_the_place_of_a_value_is_the_flag_that_gave_it() -> None:
    config = read(FILE, "nodes.worker.count=4")
    assert place_in_file(config, "nodes.worker.count") == "--set nodes.worker.count"
    assert place_in_file(config, "nodes.worker.machine") == "c.yaml:6"


# ── --env-file ───────────────────────────────────────────────────────────────


def test_variables_of_the_file_win_over_the_environment_and_do_not_enter_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WHERE", "us-east1")
    Path("e.env").write_text("# ours\nexport WHERE='us-west1'\nB=\"a b\" # c\nC=${WHERE}\n")
    text = FILE.replace("[us-central1]", "['${WHERE}']")
    text = text.replace("{command: python train.py}", "{command: 'python ${B} ${C}'}")
    Path("c.yaml").write_text(text)
    config = cloudtrain.load("c.yaml", env_file="e.env", set=["nodes.worker.count=3"])
    assert config.placement == ("us-west1",)
    assert config.train.command == "python a b ${WHERE}"
    assert config.nodes["worker"].count == 3
    assert os.environ["WHERE"] == "us-east1"
    assert "B" not in os.environ


def test_a_project_of_the_environment_is_not_taken_from_the_file() -> None:
    Path("e.env").write_text("GOOGLE_CLOUD_PROJECT=theirs\n")
    assert read(FILE, env_file="e.env").project is None


def test_secrets_are_read_from_the_file_and_the_record_has_only_its_path() -> None:
    Path("e.env").write_text("TOKEN=hunter2\n")
    config = read(f"{FILE}secrets: {{T: '${{TOKEN}}'}}\n", env_file="e.env")
    assert read_secrets(config, {"TOKEN": "other"})["T"].reveal() == "hunter2"
    assert config.env_file == str(Path("e.env").absolute())
    assert "hunter2" not in json.dumps(to_json(config))
    Path("e.env").unlink()
    with pytest.raises(UsageError, match=r"cannot read .*e\.env: No such file"):
        read_secrets(config, {})


def test_lines_that_are_not_dotenv_are_reported_without_their_text() -> None:
    Path("e.env").write_text("A=1\nhunter2\nB='open\n")
    with pytest.raises(ConfigError) as caught:
        read(FILE, env_file="e.env")
    assert str(caught.value).splitlines() == [
        "e.env:2: must be NAME=value, or a comment that begins with #",
        "e.env:3: must be NAME=value, or a comment that begins with #",
    ]


@pytest.mark.parametrize("content", [None, b"A=\xff\n"])
def test_a_file_that_cannot_be_read_is_named(content: bytes | None) -> None:
    if content is not None:
        Path("e.env").write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot read e\.env"):
        read(FILE, env_file="e.env")


# ── on every command ─────────────────────────────────────────────────────────

TAKES_A_FILE = sorted(
    set(COMMANDS) - {"init", "import", "gpus", "cache", "docs", "completion", "forget"}
)


@pytest.mark.parametrize("name", TAKES_A_FILE)
def test_every_command_that_takes_a_file_takes_both_flags(name: str) -> None:
    help = command(name, "--help").output
    assert "--set FIELD=VALUE" in help
    assert "--env-file PATH" in help


@pytest.mark.parametrize("name", TAKES_A_FILE)
def test_both_flags_are_refused_with_a_name(name: str) -> None:
    recorded(read(FILE))
    flags = ["--cloud"] if name == "ls" else []
    for flag, value in (("--set", "image=auto"), ("--env-file", "e.env")):
        result = command(name, "c", flag, value, *flags)
        assert result.exception is not None
        assert f"{flag} requires a FILE" in str(result.exception) + result.output
