"""What each shell offers, asked of the shell itself."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.state import Records

SHELLS = ("bash", "zsh", "fish")
PROGRAM = Path(sys.executable).with_name("cloudtrain")


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path) -> None:
    """Two clusters that are up, one that is down, and their runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, roles in (("mnist", {"chief": 1, "worker": 2}), ("bert", {"trial": 1})):
        config: dict[str, Any] = {"name": name, "source": str(tmp_path / f"{name}-job.yaml")}
        config["nodes"] = {role: {"count": count} for role, count in roles.items()}
        Records(name).create()
        Records(name).save_config(config)
    (Records("mnist").folder / "runs" / "20261121-062404-aaaa").mkdir(parents=True)
    (Records("mnist").folder / "runs" / "20261122-062404-bbbb").mkdir(parents=True)
    Records("older").create()
    Records("older").close()
    Path("mnist-job.yaml").write_text("provider: local\n")
    Path("new-job.yaml").write_text(
        "provider: local\nstrategy: custom\nnodes: {reader: {count: 2}}\n"
    )


def script(shell: str) -> Path:
    path = Path(f"completion.{shell}")
    done = subprocess.run([PROGRAM, "completion", shell], capture_output=True, check=True)
    path.write_bytes(done.stdout)
    return path


def offered(shell: str, line: str) -> list[str]:
    """What the shell shows for <TAB><TAB> after the line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    source = script(shell)
    if shell == "fish":
        asked = f"source {source}; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", asked], capture_output=True, text=True, env=environment
        )
        return [each.split("\t")[0] for each in done.stdout.splitlines()]
    if shell == "bash":
        words = line.split(" ")
        asked = f"""source {source}
            COMP_WORDS=("$@"); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'
            $(complete -p cloudtrain | sed 's/.*-F \\([^ ]*\\).*/\\1/') cloudtrain
            printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(
            ["bash", "--norc", "-c", asked, "bash", *words],
            capture_output=True, text=True, env=environment,
        )  # fmt: skip
        return done.stdout.split()
    return typed_in_zsh(source, line, environment)


def typed_in_zsh(source: Path, line: str, environment: dict[str, str]) -> list[str]:
    """zsh completes only in its line editor, so it gets a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**environment, "TERM": "dumb"})
    try:
        start = "PS1='rea''dy> '; setopt no_prompt_sp no_list_ambiguous; "
        start += f"autoload -U compinit; compinit -u; LISTMAX=0; source {source}\n"
        os.write(terminal, start.encode())
        until(terminal, rb"ready> $")
        os.write(terminal, f"{line}\t".encode())
        shown = until(terminal, rb"(?s)\n.*ready> ")  # below the list is the line again
        return shown.partition(b"\n")[2].rpartition(b"ready> ")[0].decode().split()
    finally:
        os.close(terminal)
        os.kill(child, 9)
        os.waitpid(child, 0)


def until(terminal: int, pattern: bytes) -> bytes:
    shown = b""
    while not re.search(pattern, shown):
        readable, _, _ = select.select([terminal], [], [], 30)
        assert readable, shown
        shown = re.sub(rb"\x1b\[\?\w+|\a", b"", shown + os.read(terminal, 65536))
    return shown


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_offers_the_nodes_of_the_cluster_that_is_typed(shell: str) -> None:
    assert offered(shell, "cloudtrain ssh mnist ") == ["chief0", "worker0", "worker1"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_offers_the_runs_of_that_cluster(shell: str) -> None:
    found = offered(shell, "cloudtrain logs mnist --run ")
    assert sorted(found) == ["20261121-062404-aaaa", "20261122-062404-bbbb"]


CASES = [
    ("exec mnist --role ", ["chief", "worker", "chief0", "worker0", "worker1"]),
    ("exec mnist --role worker", ["worker", "worker0", "worker1"]),
    ("logs mnist-job.yaml --role ch", ["chief", "chief0"]),
    ("rehearse new-job.yaml --role ", ["reader", "reader0", "reader1"]),
    ("ssh bert t", ["trial0"]),
    ("logs mnist --run 20261122", ["20261122-062404-bbbb"]),
    ("fetch older --run ", []),
    ("train mnist --resume ", ["last", "20261122-062404-bbbb", "20261121-062404-aaaa"]),
    ("train bert --resume l", ["last"]),
    ("run new-job.yaml --resume 20261121", ["20261121-062404-aaaa"]),
    ("down ", ["bert", "mnist", "mnist-job.yaml", "new-job.yaml"]),
    ("ssh o", []),
    ("status o", ["older"]),
    ("forget ", ["older"]),
    ("up ol", ["older"]),
]


@pytest.mark.parametrize(("line", "words"), CASES, ids=[line for line, _ in CASES])
def test_only_what_the_command_can_use_is_offered(line: str, words: list[str]) -> None:
    assert offered("bash", f"cloudtrain {line}") == words
