"""CLOUDTRAIN_* variables stand for flags, but for those that must be typed."""

from __future__ import annotations

import os

import click
import pytest
from click.testing import CliRunner, Result

from cloudtrain.cli.app import COMMANDS, cli, run
from cloudtrain.cli.flag_variables import ONLY_TYPED, OWN, flag_of, names_of, options, variable_of
from cloudtrain.config import additions
from cloudtrain.state import Records


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


FLAGS = [(name, option) for name in COMMANDS for option in options(command(name))]


def ids(found: list[tuple[str, click.Option]]) -> list[str]:
    return [f"{name} {flag_of(option)}" for name, option in found]


@pytest.fixture(autouse=True)
def own(own_home: object) -> None:
    """Records of its own for each test."""


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize(("name", "option"), FLAGS, ids=ids(FLAGS))
def test_every_flag_has_its_variable_but_those_that_must_be_typed(
    name: str, option: click.Option
) -> None:
    if flag_of(option) in ONLY_TYPED:
        assert option.envvar is None
    else:
        assert names_of(option)[0] == variable_of(name, option)
        assert names_of(option)[0].startswith(f"CLOUDTRAIN_{name.replace('-', '_').upper()}_")


def test_one_variable_never_stands_for_two_different_flags() -> None:
    shared: dict[str, set[str]] = {}
    for _, option in FLAGS:
        for name in names_of(option):
            shared.setdefault(name, set()).add(flag_of(option))
    assert [names for names in shared.values() if len(names) > 1] == []
    assert {"CLOUDTRAIN_JSON", "CLOUDTRAIN_STORE", "CLOUDTRAIN_ENV_FILE"} <= set(shared)
    assert {"CLOUDTRAIN_HOME", "CLOUDTRAIN_CONFIG", "CLOUDTRAIN_CACHE"}.isdisjoint(shared)


def test_no_variable_reaches_the_store_of_a_rehearsal_that_is_meant_for_reading() -> None:
    [store] = [each for each in options(command("rehearse")) if flag_of(each) == "--store"]
    assert names_of(store) == ["CLOUDTRAIN_REHEARSE_STORE"]


TYPED = [(name, option) for name, option in FLAGS if flag_of(option) in ONLY_TYPED]


@pytest.mark.parametrize("scope", ["own", "shared"])
@pytest.mark.parametrize(("name", "option"), TYPED, ids=ids(TYPED))
def test_a_variable_for_a_flag_that_must_be_typed_is_refused_by_name(
    name: str,
    option: click.Option,
    scope: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flag = flag_of(option)
    variable = variable_of(name, option) if scope == "own" else f"CLOUDTRAIN_{flag[2:].upper()}"
    monkeypatch.setenv(variable, "1")
    assert run([name, "mnist"]) == 2
    assert capsys.readouterr().err == (
        f"error: {variable} is set, and no variable may stand for {flag}\n"
        f"hint: unset it, and give {flag} on the command line\n"
    )


def test_each_flag_that_must_be_typed_exists_and_the_defaults_file_refuses_the_same() -> None:
    assert {flag_of(option) for _, option in TYPED} == set(ONLY_TYPED)
    assert tuple(flag.lstrip("-") for flag in ONLY_TYPED) == additions.ONLY_TYPED
    assert set(OWN) == {"--help", "--debug"}


def test_a_variable_counts_as_its_flag_and_the_commands_own_before_the_shared_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_JSON", "1")
    assert invoke("ls").output == '{\n  "clusters": []\n}\n'
    monkeypatch.setenv("CLOUDTRAIN_LS_JSON", "0")
    assert invoke("ls").output.startswith("no known clusters")


def test_errors_are_json_too_where_a_variable_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_JSON", "1")
    assert run(["fetch", "nobody"]) == 2
    assert capsys.readouterr().out.startswith('{\n  "error": {')
    assert run(["ssh", "nobody"]) == 2
    assert capsys.readouterr().out == ""


def test_a_wrong_value_is_reported_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_LOGS_TAIL", "x")
    assert run(["logs", "mnist"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: CLOUDTRAIN_LOGS_TAIL: Invalid value for '--tail': 'x'"
    )
    assert run(["logs", "mnist", "--tail", "y"]) == 2
    assert capsys.readouterr().err.startswith("error: Invalid value for '--tail': 'y'")


def test_a_typed_flag_wins_over_the_variable_of_one_that_it_excludes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_STORE", "file:///not/there")
    assert invoke("status", "--offline").output.startswith("no known clusters")
    both = invoke("status", "--offline", "--store", "file:///x")
    assert "exclude each other" in both.output


def test_the_variable_of_an_env_file_does_not_disturb_commands_without_a_file(
    monkeypatch: pytest.MonkeyPatch, own_home: os.PathLike[str]
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_ENV_FILE", "/not/there")
    Records("mnist").create()
    assert invoke("status", "mnist", "--offline").exit_code == 0
    assert "cannot read /not/there" in invoke("plan", "/some/file.yaml").output


def test_the_values_of_set_in_a_variable_are_on_a_line_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with open("c.yaml", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write("provider: local\nstrategy: custom\nnodes: {a: {}}\n")
    monkeypatch.setenv("CLOUDTRAIN_PLAN_SET", "nodes.a.count=2\ntrain.command=echo a b")
    assert "echo a b" in invoke("plan", "c.yaml").output
