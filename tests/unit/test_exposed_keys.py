"""A key stands under `secrets:` alone, and what leaves this machine has `${VAR}` as written."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain.artifacts.run_index import record_of
from cloudtrain.commands.train import with_arguments
from cloudtrain.config import from_json, load, to_json
from cloudtrain.config.as_written import as_written, written_lines
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.run_record import Run
from cloudtrain.report.build import reproduce
from cloudtrain.report.landed import to_json as report_to_json
from cloudtrain.report.page import page
from tests.unit.test_config_page import EXAMPLE
from tests.unit.test_report import RUN, made, without_drawing

__all__ = ["without_drawing"]

LOCAL = "provider: local\nstrategy: mirrored\n"
TOKEN = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2


def config_of(folder: Path, text: str, *given: str, **environ: str) -> ClusterConfig:
    path = folder / "c.yaml"
    path.write_text(text)
    return load(path, environ, overrides=given)


def problems(folder: Path, text: str, *given: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_of(folder, text, *given, **environ)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


KEPT = "which records, reports and process lists would keep"


NO_OTHER = "and may be used only under `secrets`: there, write"


def env(name: str, value: str) -> str:
    return f"{LOCAL}train:\n  command: x\n  env:\n    {name}: {json.dumps(value)}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            env("WANDB_API_KEY", "${WANDB_API_KEY}"),
            f"c.yaml:6: train.env.WANDB_API_KEY: WANDB_API_KEY is a credential, {NO_OTHER} "
            '`WANDB_API_KEY: "${WANDB_API_KEY}"`',
        ),
        (
            env("HF_TOKEN", "hunter2"),
            f"c.yaml:6: train.env.HF_TOKEN: looks like a key, {KEPT}: write `HF_TOKEN: "
            "${HF_TOKEN}` under `secrets:` instead, and export HF_TOKEN",
        ),
        (
            env("X", "${MY_PASSWORD}"),
            f"c.yaml:6: train.env.X: MY_PASSWORD is a credential, {NO_OTHER} "
            '`X: "${MY_PASSWORD}"`',
        ),
        (
            env("X", "${PLAIN}"),
            f"c.yaml:6: train.env.X: the value of PLAIN looks like a GitHub token, {NO_OTHER} "
            '`X: "${PLAIN}"`',
        ),
        (
            env("HF_TOKEN", "${OTHER}"),
            f"c.yaml:6: train.env.HF_TOKEN: looks like a key, {KEPT}: write `HF_TOKEN: "
            "${OTHER}` under `secrets:` instead",
        ),
        (
            env("X", f"a {TOKEN}"),
            f"c.yaml:6: train.env.X: has a GitHub token in it, {KEPT}: write `X: ${{X}}` under "
            "`secrets:` instead, and export X",
        ),
        (
            f"{LOCAL}setup:\n  run:\n    - pip install git+https://{TOKEN}@github.com/me/x\n",
            f"c.yaml:5: setup.run[0]: has a GitHub token in it, {KEPT}: remove it",
        ),
        (
            f"{LOCAL}train:\n  command: WANDB_API_KEY=abc python x.py --auth-token 'my own'\n",
            f"c.yaml:4: train.command: gives WANDB_API_KEY, {KEPT}: write `WANDB_API_KEY: "
            "${WANDB_API_KEY}` under `secrets:`, and `$${WANDB_API_KEY}` here",
        ),
        (
            f"{LOCAL}train:\n  command: {{default: x, chief: python x.py --db-password=abc}}\n",
            f"c.yaml:4: train.command.chief: gives db-password, {KEPT}: write `DB_PASSWORD: "
            "${DB_PASSWORD}` under `secrets:`, and `$${DB_PASSWORD}` here",
        ),
        (
            "provider: gcp\nplacement: [a1]\nstrategy: mirrored\ntags: {team: '${GH_TOKEN}'}\n",
            f"c.yaml:4: tags.team: GH_TOKEN is a credential, {NO_OTHER} "
            '`GH_TOKEN: "${GH_TOKEN}"`',
        ),
    ],
    ids=lambda each: each.rpartition(":")[2][:20],
)
def test_a_key_elsewhere_than_under_secrets_is_refused_with_the_line_to_write(
    tmp_path: Path, text: str, problem: str
) -> None:
    values = dict.fromkeys(("WANDB_API_KEY", "MY_PASSWORD", "GH_TOKEN", "OTHER"), "hunter2")
    said = problems(tmp_path, text, **values, PLAIN=TOKEN)
    assert problem in said
    assert len(said) == 1
    assert not any(secret in "".join(said) for secret in ("hunter2", TOKEN, "abc", "my own"))


def test_a_key_that_set_gives_is_refused_too(tmp_path: Path) -> None:
    said = problems(tmp_path, f"{LOCAL}train: {{command: x}}\n", "train.env.HF_TOKEN=hunter2")
    assert said == [
        f"--set train.env.HF_TOKEN: looks like a key, {KEPT}: write `HF_TOKEN: "
        "${HF_TOKEN}` under `secrets:` instead, and export HF_TOKEN"
    ]


def test_what_only_sounds_like_a_key_is_accepted(tmp_path: Path) -> None:
    text = f"""{LOCAL}setup: {{run: [export HF_TOKEN=$X, pip install tokenizers==0.20]}}
train:
  command: python x.py --tokenizer bert --max_tokens 64 --api-key "$${{API_KEY}}" --token-dim 8
  env:
    TOKENIZERS_PARALLELISM: "false"
    MAX_TOKENS: "128"
    PAD_TOKEN: <pad>
    HF_TOKEN: ""
    SSH_KEY: ~/.ssh/id_ed25519
    COMMIT: 0123456789abcdef0123456789abcdef01234567
secrets: {{API_KEY: "${{API_KEY}}"}}
"""
    assert config_of(tmp_path, text).train.env["MAX_TOKENS"] == "128"


def canary_fields(folder: Path) -> list[tuple[str, ClusterConfig]]:
    """Each value of the documentation's big example that takes other text, as a variable of it, and
    of fields that a record has in another form.
    """
    whole = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    cases = [(whole, path) for path in leaves(whole) if path[0] != "secrets"]
    more: dict[str, Any] = {
        "train": {"command": {"default": "x", "chief": "y"}},
        "placement": "us-east1",
    }
    more |= {"setup": {"install": "."}, "data": {"short": "gs://b/x"}, "tags": {"a/b~c": "x"}}
    more |= {"nodes": {"chief": {"provisioning": {"reservation": "mine"}}}}
    for key, value in more.items():
        merged = {**whole[key], **value} if isinstance(value, dict) else value
        cases += [({**whole, key: merged}, (key, *path)) for path in leaves(value)]
    any_of = [{"provider": "gcp", "placement": ["us-east1"]}, {"provider": "aws"}]
    any_of[1] |= {"placement": ["us-east-1"], "tags": {"b": "x"}}
    several = {"any_of": any_of, "strategy": "mirrored", "nodes": {"chief": {"machine": "x"}}}
    cases += [(several, path) for path in leaves(several)]
    return [
        (".".join(map(str, path)), each)
        for tree, path in cases
        for each in loaded(folder, tree, path)
    ]


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(tree, Mapping):
        return [at for key, each in tree.items() for at in leaves(each, (*path, key))]
    if isinstance(tree, list):
        return [at for key, each in enumerate(tree) for at in leaves(each, (*path, key))]
    return [path]


def loaded(folder: Path, tree: Any, path: tuple[Any, ...]) -> list[ClusterConfig]:
    copy = json.loads(json.dumps(tree))
    above = copy
    for part in path[:-1]:
        above = above[part]
    value, above[path[-1]] = above[path[-1]], "${CANARY}"
    try:
        return [config_of(folder, yaml.safe_dump(copy), CANARY=f"{value}canary")]
    except ConfigError:
        return []  # a number, a choice, a name that others refer to


def test_no_value_of_a_variable_is_in_what_leaves_this_machine(tmp_path: Path) -> None:
    found = canary_fields(tmp_path)
    assert len({name for name, _ in found}) > 20, [name for name, _ in found]
    for name, config in found:
        record = json.loads(json.dumps(to_json(config)))
        assert "canary" in json.dumps(record), name
        assert from_json(record).written == config.written
        shown = json.dumps(as_written(record))
        assert "canary" not in shown, name
        assert "${CANARY}" in shown, name


def test_the_record_in_the_store_and_the_report_have_the_command_as_written(tmp_path: Path) -> None:
    """The record of this machine keeps what is run: a restart must not run something else."""
    text = LOCAL + 'train: {command: "python x.py --id ${ID}", env: {A: "${ID}"}}\n'
    config = config_of(tmp_path, text, ID="canary")
    command, _ = with_arguments(config.train, ["--epochs", "3"])
    own = written_lines(config.train, config.written)
    assert (command, own) == ("python x.py --id canary --epochs 3", {"": "python x.py --id ${ID}"})
    run = replace(RUN, command=command, written={"": f"{own['']} --epochs 3"})
    report = made(run, config=json.loads(json.dumps(to_json(config))))
    published = [record_of(run).decode(), page(report), json.dumps(report_to_json(report))]
    published.append(run._repr_html_())
    for each in published:
        assert "canary" not in each
        assert "python x.py --id ${ID} --epochs 3" in each
    assert "cloudtrain train mnist -- --epochs 3" in list(report.reproduce)


def test_keys_that_an_earlier_version_recorded_are_in_no_report_and_no_stored_record() -> None:
    train = {"command": "x", "env": {"WANDB_API_KEY": "hunter2", "X": TOKEN, "EPOCHS": "3"}}
    run: Run = replace(RUN, command=f"python x.py -t {TOKEN} --api-key 'hunter2' --epochs 3")
    report = made(run, config={"name": "mnist", "source": "/x.yaml", "train": train})
    assert report.config is not None
    assert report.config["train"]["env"] == {"WANDB_API_KEY": "***", "X": "***", "EPOCHS": "3"}
    for each in (record_of(run).decode(), page(report), json.dumps(report_to_json(report))):
        assert "hunter2" not in each
        assert TOKEN not in each
        assert "python x.py -t *** --api-key *** --epochs 3" in each
    assert list(reproduce(report.config, report.run))
