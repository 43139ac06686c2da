"""What would fail on a node is found on this machine, by the one function that `check`, `up`, `run`
and `train` call before anything is created.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cloudtrain.checks.commands import syntax_error
from cloudtrain.checks.findings import found_ahead
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Setup, Train
from cloudtrain.core.protocols import Finding
from cloudtrain.playbooks import code
from tests.support.code_parts import config, git, write
from tests.support.git_private_parts import private, user
from tests.support.git_server import GitServer, git_server
from tests.support.sources import parsed

__all__ = ["user"]

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"


def bad(config: ClusterConfig) -> list[Finding]:
    return [finding for finding in found_ahead(config) if not finding.ok]


def texts(config: ClusterConfig) -> str:
    return "\n".join(finding.text for finding in bad(config))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "served") as server:
        yield server


def repository(served: Path, name: str, files: dict[str, str], *more: str) -> None:
    work = write(served / f"{name}.work", files)
    git(work, "init", "-q")
    git(work, "add", "-A")
    if more:
        git(work, "update-index", "--add", "--cacheinfo", *more)
    git(work, "commit", "-qm", "one")
    git(work, "clone", "-q", "--bare", str(work), str(work.with_suffix("")))


# ── nothing that playbooks refuse is found only later ────────────────────────

Case = Callable[[Path, pytest.MonkeyPatch], ClusterConfig]


def of_requirements(text: str, folder: Path, _: pytest.MonkeyPatch) -> ClusterConfig:
    if text:
        write(folder, {"requirements.txt": text})
    return replace(config(folder), setup=Setup(requirements="requirements.txt"))


def of_git(folder: Path, _: pytest.MonkeyPatch, **section: str) -> ClusterConfig:
    repository(folder, "x.git", {"a.py": ""})
    return config(folder, **{"git": str(folder / "x.git"), **section})


def without_git(folder: Path, patch: pytest.MonkeyPatch) -> ClusterConfig:
    patch.setenv("PATH", str(folder))
    return config(folder, git="https://example.org/x.git")


def with_token(value: str, folder: Path, patch: pytest.MonkeyPatch) -> ClusterConfig:
    patch.setenv("MY_TOKEN", value)
    return private(folder, git="http://127.0.0.1:9/x.git")


def too_large(folder: Path, _: pytest.MonkeyPatch) -> ClusterConfig:
    os.truncate(write(folder / "src", {"big": ""}) / "big", 10**9 + 1)
    return config(folder, path="src")


def with_a_link(folder: Path, _: pytest.MonkeyPatch) -> ClusterConfig:
    (write(folder / "src", {"a.py": ""}) / "out").symlink_to("/etc")
    return config(folder, path="src")


CASES: tuple[Case, ...] = (
    lambda folder, _: config(folder, path="nowhere"),
    with_a_link,
    too_large,
    partial(of_git, ref="-x"),
    partial(of_git, ref="nothing"),
    partial(of_git, git="/nowhere"),
    partial(of_git, git="ext::sh"),
    partial(of_git, git="https://me:secret@example.org/x.git"),
    without_git,
    partial(with_token, ""),
    partial(with_token, "a\nb"),
    partial(of_requirements, ""),
)

LATER = {
    # Of a run that began with other code: nothing can say so before it has begun.
    ("code.py", "has changed since the run began"),
}


def raised_in(file: Path) -> Iterator[tuple[str, int, int]]:
    """Each statement that raises one of the two: file, first and last line."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            called = getattr(node.exc.func, "id", getattr(node.exc.func, "attr", ""))
            if called in ("ConfigError", "UsageError", "refused"):
                yield file.name, node.lineno, node.end_lineno or node.lineno


def test_no_error_of_a_playbook_is_raised_only_when_nodes_exist(
    tmp_path: Path, server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, int]] = set()

    def noted(kind: type[Exception]) -> None:
        plain = kind.__init__

        def init(self: Exception, *given: object, **named: object) -> None:
            frame = sys._getframe(1)
            while frame is not None and len(seen) < 10_000:
                path = Path(frame.f_code.co_filename)
                if path.parent.name == "playbooks":
                    seen.add((path.name, frame.f_lineno))
                if frame.f_back is None:
                    break
                frame = frame.f_back
            plain(self, *given, **named)

        monkeypatch.setattr(kind, "__init__", init)

    noted(ConfigError)
    noted(UsageError)
    for number, case in enumerate(CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with monkeypatch.context() as patch:
            assert bad(case(folder, patch)), number
    repository(server.root, "y.git", *OVER_SSH)
    assert bad(config(tmp_path, git=server.url("y.git")))
    sites = [site for file in sorted(PLAYBOOKS.glob("*.py")) for site in raised_in(file)]
    assert len(sites) >= 10
    late = [
        (name, first)
        for name, first, last in sites
        if not any((name, line) in seen for line in range(first, last + 1))
        and not any(
            name == file
            and words in "\n".join((PLAYBOOKS / name).read_text().splitlines()[first - 1 : last])
            for file, words in LATER
        )
    ]
    assert late == [], "raised below playbooks/, but found_ahead was never seen to raise it"


# ── git ──────────────────────────────────────────────────────────────────────

SOME_COMMIT = "1" * 40
OVER_SSH = (
    {".gitmodules": '[submodule "lib"]\n\tpath = lib\n\turl = git@github.com:me/lib.git\n'},
    f"160000,{SOME_COMMIT},lib",
)


def test_a_submodule_that_no_node_can_read_is_named(tmp_path: Path, server: GitServer) -> None:
    repository(server.root, "x.git", *OVER_SSH)
    assert texts(config(tmp_path, git=server.url("x.git"))) == (
        f"{tmp_path}/mnist.yaml: code.git: its submodule lib is at git@github.com:me/lib.git, but "
        "nodes have no key of yours"
    )
    modules = '[submodule "l"]\n\tpath = lib\n\turl = ../gone.git\n'
    repository(server.root, "y.git", {".gitmodules": modules}, f"160000,{SOME_COMMIT},lib")
    text = texts(config(tmp_path, git=server.url("y.git")))
    assert f"its submodule lib at {server.url('gone.git')} cannot be read" in text


def test_a_submodule_that_everybody_can_read_is_none_of_our_business(
    tmp_path: Path, server: GitServer
) -> None:
    repository(server.root, "lib.git", {"a.py": ""})
    modules = '[submodule "lib"]\n\tpath = lib\n\turl = ../lib.git\n'
    stale = '[submodule "old"]\n\tpath = old\n\turl = git@nowhere:old.git\n'
    entry = f"160000,{SOME_COMMIT},lib"
    repository(server.root, "x.git", {".gitmodules": modules + stale}, entry)
    assert bad(config(tmp_path, git=server.url("x.git"))) == []


@pytest.mark.parametrize("fetched", ["here", "by nodes"])
def test_files_in_lfs_are_missed_before_a_node_waits_for_them(
    tmp_path: Path, server: GitServer, monkeypatch: pytest.MonkeyPatch, fetched: str
) -> None:
    lacking = write(tmp_path / "bin", {"git-lfs": "#!/bin/sh\nexit 127\n"}) / "git-lfs"
    lacking.chmod(0o755)
    monkeypatch.setenv("PATH", f"{lacking.parent}:{os.environ['PATH']}")
    files = {"a.bin": "version https://git-lfs", ".gitattributes": "*.bin filter=lfs\n"}
    repository(server.root, "x.git", files)
    place = server.url("x.git") if fetched == "by nodes" else str(server.root / "x.git")
    assert "Git LFS, but git-lfs is not installed" in texts(config(tmp_path, git=place))
    monkeypatch.setenv("GIT_LFS_SKIP_SMUDGE", "1")
    assert bad(config(tmp_path, git=place)) == []


def test_what_was_fetched_to_be_checked_is_what_is_delivered(tmp_path: Path) -> None:
    wanted = of_git(tmp_path, pytest.MonkeyPatch())
    assert bad(wanted) == []
    (kept,) = code._fetched.values()
    assert kept is code.archive(*_archived(wanted))


def _archived(wanted: ClusterConfig) -> tuple[code.Access, str, str, str]:
    url, commit, pointers = next(iter(code._fetched))
    assert url == wanted.code.git
    return code.Access({}), url, commit, pointers


# ── lines ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --name 'mnist",
        'python train.py --name "mnist',
        "python train.py && (cd x",
        "for i in 1 2; python train.py",
        "python train.py &&",
        "if true; then python train.py",
        "{ python train.py",
        "echo $(date",
        "python -c 'print(1)' )",
    ],
)
def test_a_line_that_bash_cannot_parse_is_refused_in_its_words(tmp_path: Path, line: str) -> None:
    wanted = replace(config(tmp_path), train=Train(command=line))
    (found,) = bad(wanted)
    assert found.what == "command"
    assert "train.command: bash cannot parse it: " in found.text
    assert "bash: -c" not in found.text
    assert "setup.run[1]: bash" in texts(replace(wanted, setup=Setup(run=("true", line))))


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --name 'mnist' && echo \"done $HOME\" > log 2>&1",
        "for i in 1 2; do python train.py; done",
        "cat <<END\nit's\nEND\npython a.py",
        "python - <<'E'\nprint('(')\nE",
        "[[ -f x ]] || exit 1; arr=(1 2); echo ${arr[@]}",
        "python a.py --filter '{a,b}' | awk '{print $1}'",
        "diff <(echo 1) <(echo 2)",
        "",
    ],
)
def test_a_line_that_bash_can_parse_is_let_through(line: str) -> None:
    assert syntax_error(line) is None
