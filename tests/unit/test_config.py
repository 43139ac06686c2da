"""A whole file in, one config or every problem out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cloudtrain.config import from_json, load, read_secrets, to_json
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import SPOT, Accelerator, ClusterConfig, NodeGroup

LOCAL = "provider: local\nstrategy: mirrored\n"


def read(
    folder: Path, text: str | bytes, environ: Mapping[str, str] | None = None, name: str = "c.yaml"
) -> ClusterConfig:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, environ or {})


def problems(folder: Path, text: str | bytes, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, environ)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


def test_a_small_file_gets_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    assert read(tmp_path, LOCAL) == ClusterConfig(
        name="c",
        provider="local",
        strategy="mirrored",
        nodes={"chief": NodeGroup()},
        source=str(path),
    )


@pytest.mark.parametrize(
    ("provider", "variable"),
    [
        ("gcp", "GOOGLE_CLOUD_PROJECT"),
        ("aws", "AWS_PROFILE"),
        ("azure", "AZURE_SUBSCRIPTION_ID"),
        ("local", None),
    ],
)
def test_a_config_has_the_project_that_the_environment_names(
    tmp_path: Path, provider: str, variable: str | None
) -> None:
    text = f"provider: {provider}\nstrategy: mirrored\n"
    text += "" if provider == "local" else "placement: [us-east1]\n"
    environ = {variable: "theirs"} if variable else {"GOOGLE_CLOUD_PROJECT": "theirs"}
    wanted = "theirs" if variable else None
    assert read(tmp_path, text, environ).project == wanted
    assert read(tmp_path, f"{text}project: mine\n", environ).project == "mine"
    assert read(tmp_path, text, dict.fromkeys(environ, "")).project is None


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
provider: gcp
placement: [us-east4-c]
strategy: multi_worker_mirrored
nodes:
  chief: {accelerator: T4, disk_gb: 100}
  worker: {count: 2, accelerator: nvidia-l4:8, spot: yes}
  evaluator:
setup: {tensorflow: 2.20, keras: 3, python: 3.10, run: [echo a]}
train:
  command: python x.py {output} $HOME
  env: {BATCH: 64, DEBUG: no, OCTAL: 010, EMPTY: , NONE: ~}
  tf_config: false
  stall_timeout: 1.5m
  deadline: 2d
artifacts: {every: 90}
limits: {max_lifetime: off, idle: null, max_price: 20.5}
""",
    )
    assert dict(config.nodes) == {
        "chief": NodeGroup(accelerator=Accelerator(kind="T4"), disk_gb=100),
        "worker": NodeGroup(
            count=2, accelerator=Accelerator(kind="nvidia-l4", count=8), provisioning=SPOT
        ),
        "evaluator": NodeGroup(),
    }
    assert (config.setup.tensorflow, config.setup.keras, config.setup.python) == (
        "2.20",
        "3",
        "3.10",
    )
    assert config.train.env == {
        "BATCH": "64",
        "DEBUG": "no",
        "OCTAL": "010",
        "EMPTY": "",
        "NONE": "",
    }
    assert config.train.tf_config is False
    assert (config.train.stall_timeout, config.train.deadline) == (90.0, 172800.0)
    assert config.artifacts.every == 90.0
    assert (config.limits.max_lifetime, config.limits.idle) == (None, None)
    assert config.limits.max_price == 20.5


def test_nothing_after_the_colon_is_a_field_left_out(tmp_path: Path) -> None:
    text = LOCAL + "setup:\nlimits: {max_lifetime: }\nimage: null\ntrain:\n  command: x\n  port:\n"
    config = read(tmp_path, text)
    assert config.limits.max_lifetime == 12 * 3600
    assert (config.image, config.train.port, config.setup.python) == ("auto", 8900, "auto")


def test_every_problem_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    text = """\
provder: gcp
strategy: multi_worker_mirrored
nodes:
  chief: {machine: n1-standard-8, accelerator: T4:x}
  wroker: {cuont: 2, spot: maybe}
  ps: {count: 0}
setup: {tensorflow: ">=2", packages: numpy}
train:
  comand: python x.py
  env:
    BATCH: [64]
    TF_CONFIG: 1
    1a: x
  port: ${PORT}
limits: {max_lifetime: 5x}
secrets: {P: hunter2}
artifacts: {store: "file://rel", paths: [../x]}
"""
    assert problems(tmp_path, text, PORT="secret9") == [
        "c.yaml:1: provder: unknown field: did you mean 'provider'?",
        "c.yaml:4: nodes.chief.accelerator: must be a kind and the number on each node, "
        "such as T4:1, not 'T4:x'",
        "c.yaml:5: nodes.wroker.spot: must be true or false, not 'maybe'",
        "c.yaml:5: nodes.wroker.cuont: unknown field: did you mean 'count'?",
        "c.yaml:5: nodes.wroker: strategy multi_worker_mirrored has no such role: "
        "did you mean 'worker'?",
        "c.yaml:6: nodes.ps.count: must be a whole number from 1 to 1000, not '0'",
        "c.yaml:6: nodes.ps: strategy multi_worker_mirrored has no such role: with a ps, the "
        "chief would wait forever (ps is for parameter_server)",
        'c.yaml:7: setup.tensorflow: must be a version such as "2.21" or "2.21.0", not \'>=2\'',
        "c.yaml:7: setup.packages: must be a list: [one, two], or a line with `- ` for each, "
        "not 'numpy'",
        "c.yaml:9: train.comand: unknown field: did you mean 'command'?",
        "c.yaml:11: train.env.BATCH: must be a single value, not a list",
        "c.yaml:12: train.env.TF_CONFIG: is set by cloudtrain: "
        "`train.tf_config: false` disables it",
        "c.yaml:13: train.env.1a: a variable's name has only letters, digits and _, "
        "and does not start with a digit",
        "c.yaml:14: train.port: must be a whole number from 1024 to 65000, not '${PORT}'",
        "c.yaml:15: limits.max_lifetime: must be a duration such as 90s, 5m, 12h or 1d "
        "(a plain number is seconds), not '5x': `off` disables it",
        "c.yaml:16: secrets.P: a secret must be exactly ${VAR}, without a default or other text",
        "c.yaml:17: artifacts.store: must be file:// and an absolute path, not 'file://rel': "
        "for a folder below your home write file://${HOME}/artifacts",
        "c.yaml:17: artifacts.paths[0]: must be a relative path that stays inside the folder "
        "(no .., no leading /), not '../x'",
    ]


def test_the_file_is_shown_as_the_user_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gcp.yaml").write_text("strategy: mirrored\nprovider: cloud\n")
    with pytest.raises(ConfigError) as caught:
        load(Path("gcp.yaml"), {})
    assert str(caught.value) == (
        "gcp.yaml:2: provider: must be one of gcp, aws, azure, local, hosts, not 'cloud'"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c.yaml: is empty: `cloudtrain init` writes a config to start from"),
        ("# only\n", "c.yaml: is empty: `cloudtrain init` writes a config to start from"),
        ("---\n", "c.yaml: is empty: `cloudtrain init` writes a config to start from"),
        ("- a\n", "c.yaml:1: must contain `field: value` lines, such as `provider: local`"),
        ("a: 1\n---\nb: 2\n", "c.yaml:2: contains more than one YAML document (---)"),
        (b"a: 1\nb: \xff\n", "c.yaml:2: is not UTF-8 text: save it in UTF-8"),
        ("a: 1\nb: \x01\n", "c.yaml:2: contains a control character, which YAML does not allow"),
        ("a: *b\n", "c.yaml:1: uses *b before &b is complete"),
        ("a: &b [*b]\n", "c.yaml:1: uses *b before &b is complete"),
        ("a: " + "[" * 99, "c.yaml:1: is nested deeper than 32 levels"),
        ("#" * 2_000_000, "c.yaml: is larger than 1024 KiB: this is not a cloudtrain config"),
    ],
    ids=lambda text: repr(text)[:24],
)
def test_what_is_not_a_config_is_refused_in_one_line(
    tmp_path: Path, text: str | bytes, expected: str
) -> None:
    assert problems(tmp_path, text) == [expected]


def test_yaml_errors_name_their_line_and_the_usual_cause(tmp_path: Path) -> None:
    [tab] = problems(tmp_path, "setup:\n\ttensorflow: 2\n")
    assert tab.startswith("c.yaml:2: is not valid YAML")
    assert tab.endswith("indent with spaces, not tabs")
    [braces] = problems(tmp_path, "a: 1\nb: {c: ${D}}\n")
    assert braces.startswith("c.yaml:2: is not valid YAML")
    assert braces.endswith('inside { }, put a ${VAR} in quotes: "${VAR}"')


def test_a_key_given_twice_is_a_problem(tmp_path: Path) -> None:
    text = LOCAL + "train:\n  command: x\n  port: 2000\n  command: y\n"
    assert problems(tmp_path, text) == [
        "c.yaml:6: train.command: is given twice, first on line 4: remove one"
    ]


def test_odd_keys_and_tags_are_problems(tmp_path: Path) -> None:
    text = LOCAL + "image: !!str x\ncode: !secret x\n? [a]\n: b\n1: x\n"
    assert problems(tmp_path, text) == [
        "c.yaml:4: code: YAML tags (!secret) are not supported",
        "c.yaml:4: code: must be a mapping: `field: value` lines, indented, not 'x'",
        "c.yaml:5: has a list or a mapping as a key: keys must be plain text",
        f"c.yaml:7: 1: unknown field: the fields here are {FIELDS}",
    ]


FIELDS = (
    "any_of, artifacts, away, code, data, disk_key, endpoints, hosts, identity, image, limits, "
    "name, network, nodes, notify, ordered, placement, project, provider, resource_group, secrets, "
    "setup, shared, strategy, tags, train"
)


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    text = """\
provider: local
strategy: multi_worker_mirrored
nodes:
  chief: &node {machine: m1, disk_gb: 50}
  worker: {<<: *node, count: 3, disk_gb: 60}
"""
    nodes = read(tmp_path, text).nodes
    assert nodes["chief"] == NodeGroup(machine="m1", disk_gb=50)
    assert nodes["worker"] == NodeGroup(machine="m1", disk_gb=60, count=3)


def test_an_alias_bomb_is_cheap(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    found = problems(tmp_path, LOCAL + "\n".join(levels) + "\nplacement: *a29\n")
    assert len(found) == 30 + 9


# ── Variables ────────────────────────────────────────────────────────────────


def test_variables_are_filled_in_after_yaml_is_read(tmp_path: Path) -> None:
    evil = 'x"\n  port: 1\n# : {[*&!'
    text = LOCAL + (
        "train:\n  command: run ${A} ${B:-two words} $${C} $D ${E:-}\n  port: ${PORT}\n"
        "  env: {A: '${A}'}\n"
    )
    config = read(tmp_path, text, {"A": evil, "PORT": "2222", "E": "e"})
    assert config.train.command == f"run {evil} two words ${{C}} $D e"
    assert config.train.env == {"A": evil}
    assert config.train.port == 2222


def test_a_default_stands_in_for_an_empty_variable(tmp_path: Path) -> None:
    assert read(tmp_path, LOCAL + "image: ${I:-auto}\n", {"I": ""}).image == "auto"


def test_an_unset_variable_is_a_problem_at_its_line(tmp_path: Path) -> None:
    assert problems(tmp_path, LOCAL + "image: ${IMAGE}\n") == [
        "c.yaml:3: image: the environment variable IMAGE is not set: set it, or write "
        "${IMAGE:-default} (for a variable of the node's own shell, $${IMAGE})"
    ]


@pytest.mark.parametrize("text", ["${", "${}", "${1}", "${A:?no}", "${A:-${B}}", "${A[@]}"])
def test_a_half_variable_is_a_problem(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, LOCAL + f"image: '{text}'\n", A="a", B="b") == [
        "c.yaml:3: image: has a ${ that is not ${VAR} or ${VAR:-default}: write $${ for a literal "
        "${"
    ]


def test_no_message_holds_a_variables_value(tmp_path: Path) -> None:
    text = """\
name: ${V}
provider: ${V}
strategy: ${V}
project: ${V}
placement: ["${V}"]
network: {ssh_from: "${V}", private: "${V}"}
nodes: {chief: {count: "${V}", machine: "${V}", accelerator: "${V}"}}
setup: {tensorflow: "${V}", python: "${V}", keras: "${V}", packages: ["${V}"]}
code: {git: "${V}", path: "${V}", ref: "${V}"}
train: {command: "${V}", dir: "${V}", port: "${V}", grace: "${V}", checkpoints: "${V}"}
artifacts: {store: "${V}", require: ["${V}"]}
endpoints: {compute: "${V}"}
limits: {max_price: "${V}"}
hosts: "${V}"
"""
    for value in ("hunter2", "-hunter2", "hunter2\n", "../hunter2", "https://u:hunter2@x", ""):
        assert "hunter2" not in "\n".join(problems(tmp_path, text, V=value))


# ── Secrets ──────────────────────────────────────────────────────────────────

SECRET = LOCAL + "secrets:\n  TOKEN: ${MY_TOKEN}\n"


def test_a_secret_is_kept_as_the_name_of_its_variable(tmp_path: Path) -> None:
    config = read(tmp_path, SECRET, {"MY_TOKEN": "hunter2"})
    assert config.secrets == {"TOKEN": "MY_TOKEN"}
    assert "hunter2" not in repr(config) + str(to_json(config))
    secrets = read_secrets(config, {"MY_TOKEN": "hunter2"})
    assert secrets["TOKEN"].reveal() == "hunter2"
    assert "hunter2" not in repr(secrets)


def test_a_config_loads_without_its_secrets_and_says_which_are_missing(tmp_path: Path) -> None:
    config = read(tmp_path, SECRET)
    for environ in ({}, {"MY_TOKEN": ""}):
        with pytest.raises(ConfigError) as caught:
            read_secrets(config, environ)
        assert str(caught.value) == (
            f"{tmp_path}/c.yaml: secrets.TOKEN: the environment variable MY_TOKEN is not set"
        )


@pytest.mark.parametrize("value", ["hunter2", "${A:-hunter2}", "x${A}", "$A", "[hunter2]", ""])
def test_a_secret_is_written_only_as_a_variable_and_never_shown(tmp_path: Path, value: str) -> None:
    assert problems(tmp_path, LOCAL + f"secrets:\n  TOKEN: {value}\n") == [
        "c.yaml:4: secrets.TOKEN: a secret must be exactly ${VAR}, without a default or other text"
    ]


def test_a_secret_variable_may_be_used_only_under_secrets(tmp_path: Path) -> None:
    text = SECRET + "train:\n  command: login ${MY_TOKEN}\n  env:\n    X: a-${MY_TOKEN:-}\n"
    assert problems(tmp_path, text, MY_TOKEN="hunter2") == [
        "c.yaml:6: train.command: MY_TOKEN is listed under `secrets`, and may be used only there",
        "c.yaml:8: train.env.X: MY_TOKEN is listed under `secrets`, and may be used only there",
    ]


def test_a_name_is_a_secret_or_plain_but_not_both(tmp_path: Path) -> None:
    text = SECRET + "train:\n  command: x\n  env: {TOKEN: plain}\n"
    assert problems(tmp_path, text) == [
        "c.yaml:4: secrets.TOKEN: is also in `train.env`: keep one of the two"
    ]


@pytest.mark.parametrize("name", ["CLOUDTRAIN_TASK", "TF_CONFIG", "A-B", "Ä", "1A"])
def test_reserved_and_odd_names_of_variables_are_refused(tmp_path: Path, name: str) -> None:
    found = problems(
        tmp_path,
        LOCAL + f"train:\n  command: x\n  env:\n    {name}: x\nsecrets:\n  {name}: ${{X}}\n",
    )
    assert [line.split(":")[1] for line in found] == ["6", "8"]


# ── Names and paths ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("file", "name"), [("mnist.yaml", "mnist"), ("My_Set 2.v1.yml", "my-set-2-v1")]
)
def test_the_name_defaults_to_the_files(tmp_path: Path, file: str, name: str) -> None:
    assert read(tmp_path, LOCAL, name=file).name == name


@pytest.mark.parametrize("file", ["2.yaml", "ä.yaml", "a" * 31 + ".yaml", "-.yaml", ".yaml"])
def test_a_file_whose_name_cannot_be_a_clusters_must_say_one(tmp_path: Path, file: str) -> None:
    with pytest.raises(
        ConfigError, match="name: is missing, and the file's name is not a valid cluster name"
    ):
        read(tmp_path, LOCAL, name=file)
    assert read(tmp_path, LOCAL + "name: fine\n", name=file).name == "fine"


@pytest.mark.parametrize("name", ["A", "a_b", "a" * 31, "1a", "", "a.b", "a\\n", "é"])
def test_odd_names_are_refused(tmp_path: Path, name: str) -> None:
    [problem] = problems(tmp_path, LOCAL + f'name: "{name}"\n')
    assert problem.startswith("c.yaml:3: name: must be a lower-case letter")


def test_paths_with_spaces_and_any_letters_work(tmp_path: Path) -> None:
    folder = tmp_path / "größe 大 $x"
    folder.mkdir()
    text = LOCAL + "code: {path: '../mein Code/ñ'}\nartifacts: {store: 'file:///a b/ö'}\n"
    config = read(folder, text)
    assert config.code.path == "../mein Code/ñ"
    assert config.artifacts.store == "file:///a b/ö"
    assert config.folder == folder


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbfprovider: local\r\nstrategy: mirrored\r\n"
    assert read(tmp_path, text).strategy == "mirrored"


def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.yaml: no such file"):
        load(tmp_path / "nothing.yaml", {})
    with pytest.raises(UsageError, match=r"cannot read .*: it is a directory"):
        load(tmp_path, {})
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "a\0b", {})


# ── Records ──────────────────────────────────────────────────────────────────


def test_a_config_survives_its_record(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "configs" / "templates" / "aws.yaml"
    config = load(path, {"HOME": "/home/me"})
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def test_a_record_of_a_newer_version_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, LOCAL)
    data = to_json(config)
    data["colour"] = "blue"
    data["setup"]["shade"] = 1
    assert from_json(data) == config


@pytest.mark.parametrize(
    "change",
    [
        {"name": None},
        {"provider": "cloud"},
        {"nodes": []},
        {"train": {"port": "x"}},
        {"hosts": [{"address": "a"}]},
        {"limits": {"idle": True}},
        {"placement": "x"},
    ],
)
def test_a_damaged_record_is_told_as_one(tmp_path: Path, change: dict[str, object]) -> None:
    data = {**to_json(read(tmp_path, LOCAL)), **change}
    with pytest.raises(ConfigError, match=r"the recorded config: .*is not what cloudtrain wrote"):
        from_json(data)
    with pytest.raises(ConfigError):
        from_json([])
