"""Words in, values to the verbs; values and errors back, lines, JSON and exit codes out."""

from __future__ import annotations

import ast
import errno
import importlib
import json
import os
import re
import sys
import types
from collections.abc import Callable
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner, Result

from cloudtrain import __version__
from cloudtrain.cli import options as flags
from cloudtrain.cli import printing
from cloudtrain.cli.app import COMMANDS, GROUPS, HIDDEN, LINES, MODULES, cli, run
from cloudtrain.cli.check import painted
from cloudtrain.commands.ssh import Executed
from cloudtrain.console import Style
from cloudtrain.core import errors
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import Cluster, Node, Problem
from cloudtrain.core.protocols import Finding
from cloudtrain.core.run_record import Run
from cloudtrain.ssh.editor import EditorRemote
from cloudtrain.ssh.user_config import Included
from cloudtrain.state import Records
from tests.support.sources import parsed

ROOT = Path(__file__).parents[2]
DOCUMENTATION = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")

NODE = Node(
    name="mnist-chief0",
    role="chief",
    index=0,
    state="running",
    address="127.0.0.1",
    internal="127.0.0.2",
    ssh_port=2201,
)
RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="python train.py",
    tasks=(),
    state="succeeded",
    created=1.0,
    ended=2.0,
    exit_code=0,
    store="file:///store/20261121-062404-k3f9",
)
Verb = Callable[..., Any]


class Verbs:
    """Stands in for verbs: what each was called with, and what it answers or raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.calls: list[tuple[Any, ...]] = []

    def answer(self, module: str, name: str, answer: object) -> None:
        def verb(*positional: Any, **named: Any) -> object:
            named.pop("console", None)
            self.calls.append((name, *positional, named))
            if isinstance(answer, BaseException):
                raise answer
            return answer

        fake = types.ModuleType(f"cloudtrain.{module if '.' in module else f'commands.{module}'}")
        fake.__dict__.update(vars(importlib.import_module(fake.__name__)))
        setattr(fake, name, verb)
        self._monkeypatch.setitem(sys.modules, fake.__name__, fake)


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> Verbs:
    return Verbs(monkeypatch)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLOUDTRAIN_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


def cloudtrain(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def known(*names: str, provider: str = "local") -> None:
    for name in names:
        Records(name).save_config({"name": name, "provider": provider, "strategy": "custom"})


def write_config(name: str = "mnist", provider: str = "local") -> str:
    lines = [f"name: {name}", f"provider: {provider}", "strategy: custom"]
    lines += ["nodes: {worker: {count: 2}}", "train: {command: echo}"]
    if provider == "gcp":
        lines[3] = "nodes: {worker: {count: 2, machine: n1-standard-8, spot: true}}"
        lines += ["project: p", "placement: [us-east4-c]"]
        lines += ["artifacts: {store: gs://bucket/x}"]
    path = Path(f"{name}.yaml")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


# ── help ─────────────────────────────────────────────────────────────────────


def test_help_names_every_command_by_what_it_is_for_and_fits_a_screen() -> None:
    done = cloudtrain("--help")
    assert done.exit_code == 0
    grouped = [c for of in GROUPS.values() for part in of for c in part]
    assert {*COMMANDS} - {*grouped} == set(), "add it to GROUPS in cli/app.py"
    assert sorted(grouped) == sorted(COMMANDS)
    assert [name for name in COMMANDS if name not in re.findall(r"[\w-]+", done.stdout)] == []
    assert "Run       run       Up, train, land the artifacts, down" in done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) < 24, "too high for a terminal of 24 lines: join two lines of GROUPS"
    wide = [line for line in lines if len(line) >= 80]
    assert wide == [], "too wide for a terminal of 80: move one to another line of GROUPS"
    assert cloudtrain().stdout == done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    module = f"cloudtrain.cli.{MODULES.get(name, name)}"
    path = f"{module.replace('.', '/')}.py"
    assert find_spec(module), f"write {path}, or add {name} to MODULES"
    function = f"{name.replace('-', '_')}_command"
    assert hasattr(importlib.import_module(module), function), f"{path}: write `{function}`"
    done = cloudtrain(name, "--help")
    assert done.exit_code == 0
    assert f"cloudtrain {name}" in done.stdout.split("Options:")[1]
    assert "--debug" in done.stdout


def test_the_version_is_printed() -> None:
    assert cloudtrain("--version").stdout == f"cloudtrain, version {__version__}\n"


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["help"], "Usage: cloudtrain COMMAND"),
        (["help", "up"], "Usage: cloudtrain up [OPTIONS] FILE"),
        (["version"], f"cloudtrain, version {__version__}"),
    ],
)
def test_help_and_version_are_also_words(
    words: list[str], first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 0
    assert capsys.readouterr().out.startswith(first)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train", "--epochs", "3"], "`cloudtrain train -- --epochs 3`"),
        (["train", "m", "--lr=0.1", "--detach"], "`cloudtrain train m --detach -- --lr=0.1`"),
        (["train", "--detahc"], "`cloudtrain train --help`"),
        (["run", "c.yaml", "--epochs", "3"], "belong in `train.command`"),
        (["plan", "https://host/c.yaml"], "download it (`curl -O URL`"),
        (["import", "git@host:a/b.git"], "download it (`curl -O URL`"),
        (["up", "gs://bucket/c.yaml", "--yes"], "`--store URI` reads what has landed"),
    ],
)
def test_a_mistake_of_the_first_hour_has_its_hint(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert hint in capsys.readouterr().err.splitlines()[-1]


def test_the_same_flag_means_the_same_everywhere() -> None:
    meanings: dict[str, set[str]] = {}
    for name in COMMANDS:
        for option in options(name):
            for flag in ("--json", "--yes", "--debug", "--role"):
                if flag in option.opts and not (flag == "--json" and name in LINES):
                    meanings.setdefault(flag, set()).add(f"{option.help} {option.name}")
    assert {flag: len(found) for flag, found in meanings.items()} == dict.fromkeys(meanings, 1)
    assert len(meanings) == 4


@pytest.mark.parametrize(
    ("words", "style"),
    [
        ([], Style(full_log=False)),
        (["--full-log"], Style(full_log=True)),
        (["--json"], Style(json=True, full_log=False)),
    ],
)
def test_each_display_flag_is_a_field_of_the_style(words: list[str], style: Style) -> None:
    @click.command()
    @flags.shows("log")
    @flags.as_json
    def command(as_json: bool) -> None:
        click.echo(repr(flags.given_style()))
        assert as_json is style.json

    assert CliRunner().invoke(command, words).output == f"{style}\n"
    assert flags.given_style() == Style(), "as in a command without these flags"


@dataclass(frozen=True, kw_only=True)
class OneFlagMore(Style):
    brief: bool = field(default=False, metadata={"on": "progress", "help": "Show less."})


@pytest.mark.parametrize("what", ["progress", "log"])
def test_a_new_display_flag_is_one_field(
    what: Literal["progress", "log"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flags, "Style", OneFlagMore)

    @click.command()
    @flags.shows(what)
    def command() -> None:
        with printing.shown() as screen:
            click.echo(repr(getattr(screen, "style", None)))

    assert CliRunner().invoke(command, ["--brief"]).output.startswith("OneFlagMore(")
    assert "brief=True" in CliRunner().invoke(command, ["--brief"]).output


def test_each_command_that_shows_progress_or_a_log_has_their_display_flags() -> None:
    wrong = {}
    for name in COMMANDS:
        module = importlib.import_module(f"cloudtrain.cli.{MODULES.get(name, name)}")
        functions = {
            each.name: each
            for each in parsed(Path(str(module.__file__))).body
            if isinstance(each, ast.FunctionDef)
        }
        command = functions[f"{name.replace('-', '_')}_command"]
        has = [
            decorator.args[0].value
            for decorator in command.decorator_list
            if isinstance(decorator, ast.Call)
            and ast.unparse(decorator.func) == "options.shows"
            and isinstance(decorator.args[0], ast.Constant)
        ]
        used = used_by(command, functions)
        shows = getattr(module, "shown", None) is printing.shown and "shown" in used
        due = ["log"] if shows and "below" in used else ["progress"] if shows else []
        if has != due:
            wrong[name] = f"is to have {[f'@options.shows({each!r})' for each in due]}"
    assert wrong == {}


def used_by(function: ast.FunctionDef, functions: dict[str, ast.FunctionDef]) -> set[str]:
    """Names that a function uses, or another one of its module for it."""
    used, due = set[str](), [function]
    while due:
        for node in ast.walk(due.pop()):
            name = getattr(node, "id", getattr(node, "attr", ""))
            if name in functions and name not in used:
                due.append(functions[name])
            used.add(name)
    return used


def test_every_command_and_flag_is_documented() -> None:
    sections = dict(
        re.findall(
            r"^### `cloudtrain ([a-z-]+).*?$(.*?)(?=^##)", DOCUMENTATION + "\n##", re.M | re.S
        )
    )
    lacking = [name for name in COMMANDS if name not in sections]
    assert lacking == [], r"add a section `### \`cloudtrain NAME\`` to docs/commands.md"
    assert list(sections) == list(COMMANDS)
    common = DOCUMENTATION.split("## Common flags")[1].split("\n## ")[0]
    for name, section in sections.items():
        for option in options(name):
            for flag in option.opts:
                where = f"docs/commands.md, the section of {name} or Common flags: {flag}"
                assert f"`{flag}" in section + common, where


def options(name: str) -> list[click.Option]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return [one for one in command.params if isinstance(one, click.Option)]


def test_hidden_commands_are_nowhere_listed() -> None:
    assert not [name for name in HIDDEN if name in cloudtrain("--help").stdout.split()]


# ── NAME or FILE ─────────────────────────────────────────────────────────────


def test_the_only_known_cluster_is_meant_without_a_name(verbs: Verbs) -> None:
    verbs.answer("stop_run", "stop_run", RUN)
    known("mnist")
    assert cloudtrain("stop-run").exit_code == 0
    assert cloudtrain("stop-run", "mnist").exit_code == 0
    assert cloudtrain("stop-run", write_config()).exit_code == 0
    assert verbs.calls == [("stop_run", "mnist", {"config": None, "order_key": None})] * 3


def test_a_file_gives_name_and_config_where_a_verb_takes_both(verbs: Verbs) -> None:
    verbs.answer("train", "train", RUN)
    done = cloudtrain("train", write_config("bert"))
    assert done.exit_code == 0, done.output
    ((_, name, config, _),) = verbs.calls
    assert (name, config.name, config.nodes["worker"].count) == ("bert", "bert", 2)


def test_a_known_name_beats_a_file_of_that_name_and_a_folder_is_no_file(verbs: Verbs) -> None:
    verbs.answer("stop_run", "stop_run", RUN)
    known("mnist")
    Path("mnist").mkdir()
    assert cloudtrain("stop-run", "mnist").exit_code == 0
    Path("mnist").rmdir()
    Path("mnist").write_text("name: other")
    assert cloudtrain("stop-run", "mnist").exit_code == 0
    assert verbs.calls == [("stop_run", "mnist", {"config": None, "order_key": None})] * 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["status", "mnits"],
            "error: no cluster 'mnits' is known here\nhint: did you mean mnist?\n",
        ),
        (
            ["train", "gone.yaml"],
            "error: gone.yaml: no such file\nhint: `cloudtrain init` ",
        ),
        (["logs", "../mnist"], "error: ../mnist: no such file\n"),
        (["ssh"], "error: Missing argument 'NAME'.\nhint: `cloudtrain ssh --help`\n"),
        (["trian"], "error: unknown command 'trian'\nhint: did you mean `cloudtrain train`?\n"),
        (["up", "--jsn"], "error: No such option '--jsn'. (Did you mean"),
        (["logs", "--tail", "-1"], "error: Invalid value for '--tail': -1"),
        (
            ["exec", "mnist"],
            "error: no command given\nhint: for example: cloudtrain exec mnist --role",
        ),
        (
            ["exec", "mnist", "--", "ls | wc -l"],
            "error: the quoted line is one word, so it would be a program's name\n"
            "hint: for a shell: `cloudtrain exec mnist -- sh -c 'ls | wc -l'`; without one, "
            "leave out the quotes\n",
        ),
        (["completion", "tcsh"], "error: Invalid value for '["),
        (["status", "--watch", "--json"], "error: --watch and --json exclude each other"),
    ],
)
def test_bad_usage_is_two_lines_and_exit_code_2(arguments: list[str], error: str) -> None:
    known("mnist")
    done = cloudtrain(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(error)
    assert len(done.stderr.splitlines()) <= 2


# ── what reaches the verbs ───────────────────────────────────────────────────


def test_what_stands_after_the_dashes_reaches_the_command_as_written(verbs: Verbs) -> None:
    known("mnist")
    verbs.answer("train", "train", RUN)
    verbs.answer("ssh", "execute", Executed(exit_codes={"worker0": 7, "ps0": 0}))
    assert cloudtrain("train", "--", "--epochs", "3", "--", "a b").exit_code == 0
    assert cloudtrain("train", "mnist", "--detach", "--", "--json").exit_code == 0
    done = cloudtrain(
        "exec", "mnist", "--role", "worker", "--role", "ps0", "--", "ls", "-la", "$HOME"
    )
    assert done.exit_code == 7
    assert cloudtrain("exec", "mnist", "uptime").exit_code == 7
    attached = {"detach": False, "adopt": False, "resume": None}
    assert verbs.calls == [
        ("train", "mnist", None, {"arguments": ("--epochs", "3", "--", "a b"), **attached}),
        ("train", "mnist", None, {"arguments": ("--json",), **attached, "detach": True}),
        ("execute", "mnist", {"roles": ("worker", "ps0"), "command": ("ls", "-la", "$HOME")}),
        ("execute", "mnist", {"roles": (), "command": ("uptime",)}),
    ]


def test_logs_flags_reach_the_verb(verbs: Verbs) -> None:
    known("mnist")
    verbs.answer("logs", "logs", None)
    assert cloudtrain("logs", "-f", "--role", "chief", "--tail", "5", "--run", "x").exit_code == 0
    assert cloudtrain("logs", "mnist").exit_code == 0
    here = {"config": None, "store": None, "view": None}
    assert verbs.calls == [
        ("logs", "mnist", {"follow": True, "roles": ("chief",), "tail": 5, "run": "x", **here}),
        ("logs", "mnist", {"follow": False, "roles": (), "tail": None, "run": None, **here}),
    ]


def test_fetch_tells_a_folder_from_a_name(verbs: Verbs) -> None:
    known("mnist")
    verbs.answer("fetch", "fetch", None)
    for arguments in (["mnist"], ["mnist", "home"], ["./home"], []):
        assert cloudtrain("fetch", *arguments).exit_code == 0
    places = [(call[1], str(call[2])) for call in verbs.calls]
    assert places == [("mnist", "mnist"), ("mnist", "home"), ("mnist", "home"), ("mnist", "mnist")]
    assert cloudtrain("fetch", "mnits").exit_code == 2


def test_ssh_becomes_the_systems_own(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    known("mnist")
    verbs.answer("ssh", "shell_command", ["no-such-ssh", "mnist-worker0"])
    started: list[list[str]] = []
    monkeypatch.setattr("os.execvp", lambda _, arguments: started.append(arguments))
    assert cloudtrain("ssh", "mnist", "worker0", "--", "df", "-h").exit_code == 0
    assert verbs.calls == [("shell_command", "mnist", "worker0", ("df", "-h"), {})]
    assert started == [["no-such-ssh", "mnist-worker0"]]
    monkeypatch.undo()


def test_a_machine_without_ssh_is_told_so(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(file: str, arguments: list[str]) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)

    monkeypatch.setattr("os.execvp", missing)
    known("mnist")
    verbs.answer("ssh", "shell_command", ["no-such-ssh"])
    done = cloudtrain("ssh", "mnist")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: no-such-ssh is not installed\n")


def test_init_writes_the_providers_file(verbs: Verbs) -> None:
    verbs.answer("init", "init", Path("gcp.yaml"))
    assert "cloudtrain plan gcp.yaml" in cloudtrain("init", "gcp").stdout
    cloudtrain("init", "--output", "x/y.yaml")
    assert verbs.calls == [("init", "gcp", Path(), {}), ("init", "local", Path("x/y.yaml"), {})]


# ── JSON and exit codes ──────────────────────────────────────────────────────


def test_json_is_one_document_on_stdout(verbs: Verbs) -> None:
    known("mnist")
    verbs.answer("up", "up", Cluster(name="mnist", nodes=(NODE,)))
    verbs.answer("train", "train", RUN)
    verbs.answer("run", "run", RUN)
    verbs.answer("stop_run", "stop_run", RUN)
    verbs.answer("down", "down", None)
    config = write_config()

    up = json.loads(cloudtrain("up", config, "--json").stdout)
    assert (up["name"], up["nodes"][0]["ssh_port"]) == ("mnist", 2201)
    for arguments in (["train"], ["run", config], ["stop-run"]):
        document = json.loads(cloudtrain(*arguments, "--json").stdout)
        assert (document["id"], document["state"], document["exit_code"]) == (
            RUN.id,
            "succeeded",
            0,
        )
    assert json.loads(cloudtrain("plan", config, "--json").stdout)["name"] == "mnist"
    assert json.loads(cloudtrain("down", "--json").stdout) == {"name": "mnist", "left": []}


def test_check_prints_findings_and_ends_with_the_most_serious_code(verbs: Verbs) -> None:
    findings = (
        Finding(what="code", ok=True, text="./src"),
        Finding(what="quota", ok=False, text="8 of 4", hint="ask", error=errors.QuotaError),
        Finding(what="who", ok=False, text="nobody", error=errors.CredentialsError),
    )
    verbs.answer("checks.check", "check", findings)
    done = cloudtrain("check", write_config())
    assert done.exit_code == 4
    assert done.stdout.splitlines() == [
        "ok    code   ./src",
        "FAIL  quota  8 of 4",
        "             hint: ask",
        "FAIL  who    nobody",
        "2 of 3 findings would stop `cloudtrain up`",
    ]
    document = json.loads(cloudtrain("check", "mnist.yaml", "--json").stdout)
    assert [finding["exit_code"] for finding in document["findings"]] == [0, 3, 4]
    verbs.answer("checks.check", "check", findings[:1])
    assert cloudtrain("check", "mnist.yaml").exit_code == 0


def test_good_findings_about_this_machine_are_one_line_unless_each_is_wanted(verbs: Verbs) -> None:
    findings = [
        Finding(what="system", ok=True, text="Linux"),
        Finding(what="disk", ok=True, text="62 GB free"),
        Finding(what="memory", ok=False, text="1 GB", error=errors.PreflightError),
        Finding(what="code", ok=True, text="./src"),
    ]
    verbs.answer("checks.check", "check", tuple(findings))
    assert cloudtrain("check", write_config()).stdout.splitlines() == [
        "ok    this machine (2)",
        "ok    code    ./src",
        "FAIL  memory  1 GB",
        "1 of 4 findings would stop `cloudtrain up`",
    ]
    assert "ok    disk    62 GB free" in cloudtrain("check", "mnist.yaml", "--all").stdout
    assert len(json.loads(cloudtrain("check", "mnist.yaml", "--json").stdout)["findings"]) == 4


def test_many_good_hosts_are_one_line_and_a_bad_one_has_its_own(verbs: Verbs) -> None:
    hosts = [Finding(what=f"host gpu{n}", ok=n != 3, text="worker") for n in range(12)]
    verbs.answer("checks.check", "check", tuple(hosts))
    assert cloudtrain("check", write_config()).stdout.splitlines() == [
        "ok    hosts (11)",
        "FAIL  host gpu3  worker",
        "1 of 12 findings would stop `cloudtrain up`",
    ]
    verbs.answer("checks.check", "check", tuple(hosts[4:12]))
    assert "ok    host gpu9   worker" in cloudtrain("check", "mnist.yaml").stdout


def test_the_signs_of_findings_have_colours() -> None:
    text = "FAIL  disk  full\n  ?     quota  ok\nok    code  FAIL "
    assert painted(text) == (
        "\x1b[31mFAIL\x1b[0m  disk  full\n  \x1b[33m?\x1b[0m     quota  ok\n"
        "\x1b[32mok\x1b[0m    code  FAIL "
    )


def test_what_nobody_tells_is_never_counted_as_enough(verbs: Verbs) -> None:
    findings = (
        Finding(what="code", ok=True, text="./src"),
        Finding(what="quota", ok=True, text="Tesla family is not listed", told=False),
    )
    verbs.answer("checks.check", "check", findings)
    done = cloudtrain("check", write_config())
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "ok    code   ./src",
        "?     quota  Tesla family is not listed",
        "nothing found would stop `cloudtrain up`; not checked: quota",
    ]
    document = json.loads(cloudtrain("check", "mnist.yaml", "--json").stdout)
    assert [finding["told"] for finding in document["findings"]] == [True, False]


def exit_code_of(kind: type[errors.CloudtrainError]) -> int:
    return kind.exit_code


@pytest.mark.parametrize(
    ("error", "code", "lines", "document"),
    [
        (
            errors.CapacityError("none in a, b", hint="try c"),
            3,
            ["error: none in a, b", "hint: try c"],
            {},
        ),
        (errors.CredentialsError("who?"), 4, ["error: who?"], {}),
        (errors.NotLanded("2 files"), 5, ["error: 2 files"], {}),
        (errors.LeftoverError("disk x"), 6, ["error: disk x"], {}),
        (
            errors.RunFailed("worker1: signal 9\nlast words", task_exit_code=-9),
            1,
            ["error: worker1: signal 9", "       last words"],
            {"task_exit_code": -9},
        ),
        (
            errors.NodesError({"a": errors.NodeError("a", "x"), "b": errors.QuotaError("y")}),
            3,
            ["error: a: x", "       b: y"],
            {"failures": {"a": "a: x", "b": "y"}},
        ),
        (
            errors.ConfigError(
                [
                    Problem(file="f.yaml", line=14, field="nodes", text="is empty"),
                    Problem(file="f.yaml", line=None, field="", text="no"),
                ]
            ),
            2,
            ["error: f.yaml:14: nodes: is empty", "error: f.yaml: no"],
            {
                "problems": [
                    {"file": "f.yaml", "line": 14, "field": "nodes", "text": "is empty"},
                    {"file": "f.yaml", "line": None, "field": "", "text": "no"},
                ]
            },
        ),
        (KeyboardInterrupt(), 130, ["interrupted"], {}),
        (
            PermissionError(13, "Permission denied", "/x/y"),
            1,
            ["error: /x/y: Permission denied"],
            {},
        ),
        (
            KeyError("state\nx"),
            1,
            [
                "error: internal: KeyError: 'state\\nx'",
                "hint: run it again with --debug and report the traceback",
            ],
            {},
        ),
        (
            errors.UsageError("worker0: \x1b[2J\x1b]0;t\x07last"),
            2,
            ["error: worker0: last"],
            {},
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_a_few_lines_a_document_and_its_exit_code(
    verbs: Verbs, error: BaseException, code: int, lines: list[str], document: dict[str, Any]
) -> None:
    known("mnist")
    verbs.answer("train", "train", error)
    text = cloudtrain("train")
    assert (text.exit_code, text.stderr.splitlines(), text.stdout) == (code, lines, "")
    done = cloudtrain("train", "--json")
    assert (done.exit_code, done.stderr.splitlines()) == (code, lines)
    shown = json.loads(done.stdout)["error"]
    assert shown["exit_code"] == code
    assert shown["kind"] == type(error).__name__
    assert {name: shown[name] for name in document} == document


def test_an_error_of_many_nodes_is_cut_on_the_screen_and_whole_in_the_json(verbs: Verbs) -> None:
    known("mnist")
    failures = {f"n{n}": errors.NodeError(f"n{n}", "no answer") for n in range(128)}
    verbs.answer("train", "train", errors.NodesError(failures))
    done = cloudtrain("train", "--json")
    assert len(done.stderr.splitlines()) == 24
    assert done.stderr.splitlines()[-1] == "       … and 105 more lines: --debug shows all"
    assert len(json.loads(done.stdout)["error"]["failures"]) == 128


@pytest.mark.parametrize("where", ["command", "group", "environment"])
def test_a_traceback_is_shown_only_for_debug(
    verbs: Verbs, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    known("mnist")
    verbs.answer("train", "train", ValueError("inside"))
    assert "Traceback" not in cloudtrain("train", "--", "--debug").output
    if where == "environment":
        monkeypatch.setenv("CLOUDTRAIN_DEBUG", "1")
        done = cloudtrain("train")
    else:
        done = cloudtrain(*(["train", "--debug"] if where == "command" else ["--debug", "train"]))
    assert done.exit_code == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-2] == "error: internal: ValueError: inside"


def test_bad_usage_is_json_too_where_json_is_asked() -> None:
    done = cloudtrain("up", "--json")
    assert json.loads(done.stdout)["error"] == {
        "kind": "MissingParameter",
        "message": "Missing argument 'FILE'.",
        "hint": "`cloudtrain up --help`",
        "exit_code": 2,
    }
    assert done.exit_code == 2


def test_a_run_that_was_stopped_ends_train_with_its_exit_code(verbs: Verbs) -> None:
    known("mnist")
    verbs.answer("train", "train", Run(**{**vars(RUN), "state": "stopped", "exit_code": 1}))
    assert cloudtrain("train").exit_code == 1
    verbs.answer("train", "train", Run(**{**vars(RUN), "state": "running", "exit_code": None}))
    assert cloudtrain("train", "--detach").exit_code == 0


# ── questions ────────────────────────────────────────────────────────────────


def test_what_makes_no_bill_asks_nothing(verbs: Verbs) -> None:
    verbs.answer("up", "up", Cluster(name="mnist", nodes=(NODE,)))
    verbs.answer("down", "down", None)
    assert cloudtrain("up", write_config()).exit_code == 0
    known("mnist")
    assert cloudtrain("down").exit_code == 0
    assert cloudtrain("down", "--discard").exit_code == 0
    usual = {"adopt": False, "owner": None, "order_key": None, "break_lease": ""}
    assert [call[-1] for call in verbs.calls[1:]] == [
        {"discard": False, **usual},
        {"discard": True, **usual},
    ]


def test_what_costs_money_is_never_done_unasked(verbs: Verbs) -> None:
    verbs.answer("up", "up", Cluster(name="gcp", nodes=()))
    verbs.answer("down", "down", None)
    config = write_config("gcp", "gcp")
    known("gcp", provider="gcp")
    for arguments in (["up", config], ["down"], ["down", "--discard"]):
        done = cloudtrain(*arguments)
        assert done.exit_code == 2
        assert "hint: pass --yes" in done.stderr
    assert verbs.calls == []
    for arguments in (["up", config], ["down"], ["down", "--discard"]):
        assert cloudtrain(*arguments, "--yes").exit_code == 0
    assert len(verbs.calls) == 3


def test_a_terminal_is_asked_and_no_is_no(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setattr("cloudtrain.cli.down.on_terminal", lambda: True)
    verbs.answer("up", "up", Cluster(name="gcp", nodes=()))
    verbs.answer("down", "down", None)
    known("mnist")
    config = write_config("gcp", "gcp")
    refused = cloudtrain("up", config, stdin="n\n")
    assert refused.exit_code == 130
    assert "Create 2 worker (n1-standard-8, spot) on gcp, 0.21 $/hour? [y/N]: " in refused.stderr
    assert refused.stderr.endswith("cancelled: nothing was changed\n")
    assert cloudtrain("down", "mnist", "--discard", stdin="n\n").exit_code == 130
    assert verbs.calls == []
    assert cloudtrain("up", config, stdin="y\n").exit_code == 0
    assert cloudtrain("down", "mnist", "--discard", stdin="y\n").exit_code == 0
    assert len(verbs.calls) == 2


def test_a_cluster_whose_record_is_unreadable_is_taken_for_one_that_costs(verbs: Verbs) -> None:
    verbs.answer("down", "down", None)
    Records("mnist").create()
    (Records("mnist").folder / "config.json").write_text("{")
    assert cloudtrain("down").exit_code == 2
    assert cloudtrain("down", "--yes").exit_code == 0


# ── completion ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_and_how_to_install_it(shell: str) -> None:
    done = cloudtrain("completion", shell)
    assert done.exit_code == 0
    assert f"_CLOUDTRAIN_COMPLETE={shell}_complete" in done.stdout
    assert f"# To install: cloudtrain completion {shell} > " in done.stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("cloudtrain st", ["status", "stop-run"]),
        ("cloudtrain train ", ["bert", "mnist", "local.yaml"]),
        ("cloudtrain down m", ["mnist"]),
        ("cloudtrain run lo", ["local.yaml"]),
        ("cloudtrain logs --fo", ["--follow"]),
        ("cloudtrain completion z", ["zsh"]),
    ],
)
def test_the_shell_completes_commands_flags_clusters_and_files(
    monkeypatch: pytest.MonkeyPatch, words: str, found: list[str]
) -> None:
    known("mnist", "bert")
    Path("local.yaml").touch()
    Path("other.txt").touch()
    monkeypatch.setenv("_CLOUDTRAIN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    done = cloudtrain()
    assert done.exit_code == 0
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == found


# ── --json of the commands whose output is lines ─────────────────────────────


def test_exec_prints_what_each_node_answered_as_one_document(verbs: Verbs) -> None:
    known("mnist")
    done = Executed(exit_codes={"chief0": 0, "worker0": 3}, skipped=("worker1 (gone)",))
    verbs.answer("ssh", "execute", done)
    result = cloudtrain("exec", "mnist", "--json", "--", "hostname")
    assert result.exit_code == 3
    assert json.loads(result.stdout) == {
        "name": "mnist",
        "nodes": [
            {"task": "chief0", "exit_code": 0, "output": ""},
            {"task": "worker0", "exit_code": 3, "output": ""},
        ],
        "skipped": ["worker1 (gone)"],
        "exit_code": 3,
    }


def test_init_and_ssh_config_print_a_document_too(
    verbs: Verbs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    assert json.loads(cloudtrain("init", "--json").stdout) == {
        "file": "local.yaml",
        "script": "train.py",
    }
    known("mnist")
    verbs.answer("ssh", "ssh_config", "Host mnist-chief0\n")
    assert json.loads(cloudtrain("ssh-config", "mnist", "--json").stdout) == {
        "name": "mnist",
        "ssh_config": "Host mnist-chief0\n",
    }
    config = tmp_path / "config"
    for added, said in ((True, "added"), (False, "has")):
        verbs.answer("ssh", "install_include", Included(file=config, line="Include x", added=added))
        document = json.loads(cloudtrain("ssh-config", "--install", "--json").stdout)
        assert document == {"file": str(config), "line": "Include x", "added": added}
        printed = cloudtrain("ssh-config", "--install").stdout
        assert printed == f"{config}: {said} the line: Include x\n"
    assert cloudtrain("ssh-config", "mnist", "--install").exit_code == 2


def test_code_names_the_node_and_its_folder_as_editors_take_them(verbs: Verbs) -> None:
    known("mnist")
    verbs.answer("ssh", "editor_remote", EditorRemote(node="mnist-chief0", folder="/home/a b/work"))
    printed = cloudtrain("code", "mnist", "--editor", "cursor").stdout
    assert printed == "cursor --remote ssh-remote+mnist-chief0 '/home/a b/work'\n"
    document = json.loads(cloudtrain("code", "mnist", "--json").stdout)
    assert document["uri"] == "vscode://vscode-remote/ssh-remote+mnist-chief0/home/a%20b/work"
    assert document["command"][0] == "code"
