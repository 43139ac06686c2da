"""The shell that stays open on a node answers each script exactly."""

from __future__ import annotations

import subprocess

import paramiko
import pytest

from cloudtrain.core.errors import NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.core.shell import command, script, within
from cloudtrain.ssh.transport import SshTransport
from tests.support.sshd import SshdNode, eventually
from tests.support.supervising import SHELLS

pytestmark = pytest.mark.openssh

MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("text", "code", "stdout", "stderr"),
    [
        ("", 0, b"", b""),
        ("exit 3", 3, b"", b""),
        ("echo a; echo b >&2", 0, b"a\n", b"b\n"),
        ("printf 'no newline'", 0, b"no newline", b""),
        ("printf '\\000\\377\\n\\000'", 0, b"\0\xff\n\0", b""),
        ("echo \"it's\" '$HOME' \\\\", 0, b"it's $HOME \\\n", b""),
        ("cat; echo end", 0, b"end\n", b""),
        ("set -e; false; echo never", 1, b"", b""),
        ("cd /; pwd; exec true", 0, b"/\n", b""),
        ("cat <<'X'\nhere $HOME\nX", 0, b"here $HOME\n", b""),
        ("x=1 # comment", 0, b"", b""),
        ("sh -c 'kill -9 $$'", 137, b"", b"Killed\n"),
    ],
)
def test_ask_gives_back_just_what_the_script_did(
    ssh: SshTransport, node: Node, text: str, code: int, stdout: bytes, stderr: bytes
) -> None:
    for _ in range(2):
        completed = ssh.ask(node, text)
        assert (completed.exit_code, completed.stdout) == (code, stdout)
        assert completed.stderr == stderr


def test_a_script_with_a_syntax_error_leaves_the_shell_usable(
    ssh: SshTransport, node: Node
) -> None:
    assert ssh.ask(node, "if then (").exit_code == 2
    assert ssh.ask(node, "echo still here").stdout == b"still here\n"


def test_ask_takes_large_outputs_and_large_scripts(ssh: SshTransport, node: Node) -> None:
    completed = ssh.ask(node, "head -c 1048576 /dev/zero; head -c 9999999 /dev/zero >&2")
    assert len(completed.stdout) == MEGABYTE
    assert len(completed.stderr) == 9_999_999
    text = "x" * MEGABYTE
    assert ssh.ask(node, f": {text}; echo read").stdout == b"read\n"


def test_late_output_of_a_background_child_is_in_no_other_answer(
    ssh: SshTransport, node: Node, server: SshdNode
) -> None:
    ssh.ask(node, "(while [ ! -e go ]; do sleep 0.01; done; echo late; touch late) & echo early")
    ssh.run(node, command("touch", "go"))
    eventually((server.home / "late").exists)
    assert ssh.ask(node, "echo next").stdout == b"next\n"


def test_a_script_that_hangs_is_given_up_and_the_next_one_answers(
    ssh: SshTransport, node: Node
) -> None:
    with pytest.raises(NodeUnreachable, match=r"no answer within 0\.2 s to `sleep 100`"):
        ssh.ask(node, "sleep 100", timeout=0.2)
    with pytest.raises(NodeUnreachable, match="no answer"):
        ssh.ask(node, "yes", timeout=0.2)
    assert ssh.ask(node, "echo next").stdout == b"next\n"


def test_a_connection_that_ends_while_a_script_is_sent_is_told(
    ssh: SshTransport, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko raises an EOFError, which is no OSError, where its socket closes under a write."""
    ssh.ask(node, "true")

    def broken(channel: paramiko.Channel, data: bytes) -> None:
        raise EOFError

    with monkeypatch.context() as patch:
        patch.setattr(paramiko.Channel, "sendall", broken)
        with pytest.raises(NodeUnreachable):
            ssh.ask(node, "echo never")
    assert ssh.ask(node, "echo next").stdout == b"next\n"


def test_a_script_that_kills_its_shell_is_told_and_the_next_one_answers(
    ssh: SshTransport, node: Node
) -> None:
    with pytest.raises(NodeUnreachable, match="the node ended the session before"):
        ssh.ask(node, "kill -9 $$; sleep 100")
    assert ssh.ask(node, "echo next").stdout == b"next\n"


# ── a script within a shell that runs already ──────────────────────────────────

SCRIPTS = {
    "arguments": (script('[ "$#/$1" = "1/a \'b" ] && exit 3', "a 'b"), 3),
    "none": (script('exit "$#"'), 0),
    "its end": (script("set -e; false; exit 4"), 1),
    "comment": (script("exit 5 # and no more"), 5),
    "another": (command("sh", "-c", "exit 6"), 6),
    "no shell": (script("exit 7 )"), 2),
}


@pytest.mark.parametrize("which", SCRIPTS)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_within_a_shell_ends_as_one_of_its_own_and_the_shell_goes_on(
    which: str, shell: str
) -> None:
    one, code = SCRIPTS[which]
    line = f'set -- x\n( {within(one)} ) 2>/dev/null\necho "$? $*"'
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == f"{code} x\n"
