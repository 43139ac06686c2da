"""`cloudtrain` as a process: what it loads, its streams, and how it is interrupted."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.cli.app import COMMANDS
from cloudtrain.state import Records
from tests.support.fakes import eventually

ROOT = Path(__file__).parents[2]

HEAVY = {
    *("paramiko", "fabric", "invoke", "rich", "yaml", "pathspec", "cryptography"),
    *("boto3", "libcloud", "google", "azure", "tensorflow", "asyncio", "concurrent", "unittest"),
}

LOADED = """
import sys
from cloudtrain.__main__ import main
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""

FAKE_TRAIN = """
import sys, types, time, threading
from cloudtrain.__main__ import main

def train(name, config, *, arguments, detach, console, **others):
    try:
        if "lines" in arguments:
            # as the follower does: from a thread of its own
            def write():
                for number in range(1000000):
                    console.task_output("chief0", b"line %d\\n" % number)
            threading.Thread(target=write, daemon=True).start()
        console.task_output("chief0", b"first line\\nno end")
        console.say("begun")
        time.sleep(600)
    except KeyboardInterrupt:
        console.say("continues in the background")
        raise

fake = types.ModuleType("cloudtrain.commands.train")
fake.train = train
sys.modules[fake.__name__] = fake
main()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("CLOUDTRAIN_DEBUG", raising=False)
    Records("mnist").save_config({"name": "mnist", "provider": "local", "strategy": "custom"})
    return tmp_path / "home"


def cloudtrain(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cloudtrain", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def train(*arguments: str, **streams: int) -> subprocess.Popen[bytes]:
    """`cloudtrain train` with a verb that only waits."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.Popen(
        [sys.executable, "-c", FAKE_TRAIN, "train", *arguments],
        **pipes,  # type: ignore[call-overload]
    )


def begun(process: subprocess.Popen[bytes]) -> None:
    assert process.stderr is not None
    line = process.stderr.readline()
    if line.startswith(b"chief0"):  # with --json
        line = process.stderr.readline()
    assert line.endswith(b"begun\n"), line + process.stderr.read()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        *((name, "--help") for name in COMMANDS),
        ("status", "--offline"),
        ("status", "--offline", "--json"),
        ("completion", "bash"),
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_loaded_before_it_is_used(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout
    loaded = set(done.stderr.split())
    assert {"click", "cloudtrain"} <= loaded
    assert loaded & HEAVY == set()


def test_completion_of_a_cluster_name_loads_nothing_heavy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # without a FILE to offer
    monkeypatch.setenv("_CLOUDTRAIN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "cloudtrain train ")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "plain,mnist\n"
    assert set(done.stderr.split()) & HEAVY == set()


def test_errors_go_to_stderr_and_stdout_holds_only_the_document() -> None:
    done = cloudtrain("train", "no.yaml", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["exit_code"] == 2
    assert done.stderr.startswith("error: no.yaml: no such file\n")
    plain = cloudtrain("train", "no.yaml")
    assert (plain.returncode, plain.stdout, plain.stderr) == (2, "", done.stderr)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_every_way_to_interrupt_ends_with_the_same_care(number: int, code: int) -> None:
    with train() as process:
        begun(process)
        process.send_signal(number)
        out, err = process.communicate()
    assert process.returncode == code
    assert out.decode() == "chief0 │ first line\nchief0 │ no end\n"
    lines = err.decode().splitlines()
    assert lines[0].endswith("continues in the background")
    assert lines[1:] == ["interrupted"]


def test_an_interrupt_with_json_is_a_document() -> None:
    with train("--json") as process:
        begun(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert json.loads(out)["error"]["exit_code"] == process.returncode == 130
    assert b"interrupted" in err


def test_a_background_job_that_ignores_hang_ups_goes_on(tmp_path: Path) -> None:
    script = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-c", FAKE_TRAIN, "train"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        begun(process)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 143
    assert b"continues in the background" in err


def test_a_reader_that_has_enough_ends_the_command_quietly_and_detaches_the_run() -> None:
    with train("--", "lines") as process:
        begun(process)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read().decode()
        process.wait()
    assert process.returncode == 141
    assert [line.partition("s  ")[2] for line in err.splitlines()] == [
        "continues in the background"
    ]


def test_a_short_output_that_nobody_reads_ends_quietly_too() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "cloudtrain", "status", "--offline"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_under_stdout_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cloudtrain", "status", "--offline"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "error: standard output: No space left on device\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_stream_is_no_traceback(stream: str) -> None:
    redirect = ">&-" if stream == "stdout" else "2>&-"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m cloudtrain status --offline {redirect}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout
    assert done.returncode in (0, 1)


def test_an_ascii_terminal_gets_ascii() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    with subprocess.Popen(
        [sys.executable, "-c", FAKE_TRAIN, "train"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        begun(process)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert out == b"chief0 | first line\nchief0 | no end\n"


def test_watching_ends_with_ctrl_c_and_exit_code_0() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "cloudtrain", "status", "--watch", "--offline"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"mnist  local  custom")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")


def test_watching_redraws_on_a_terminal() -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "cloudtrain", "status", "--watch", "--offline"],
        stdout=follower,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(follower)
        shown = bytearray()

        def drawn() -> bool:
            shown.extend(os.read(leader, 1000))
            return b"mnist  local" in shown

        eventually(drawn)
        process.send_signal(signal.SIGINT)
        process.wait()
    os.close(leader)
    assert b"\x1b[?1049h" in shown, "not on the alternate screen"
    assert process.returncode == 0


def test_on_a_terminal_a_question_is_asked_and_ctrl_c_changes_nothing(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    Records("mnist").save_config({"name": "mnist", "provider": "gcp", "strategy": "custom"})
    with subprocess.Popen(
        [sys.executable, "-m", "cloudtrain", "down"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    ) as process:
        os.close(follower)
        shown = bytearray()

        def asked() -> bool:
            shown.extend(os.read(leader, 1000))
            return b"[y/N]" in shown

        eventually(asked)

        for _ in range(10):
            # Python misses a signal that comes just before it begins to read: so once more.
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(2)
                break
    os.close(leader)
    assert process.returncode == 130
    assert b"Land the artifacts of mnist and destroy it on gcp?" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_good_shell(shell: str, tmp_path: Path) -> None:
    from shutil import which

    if which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(cloudtrain("completion", shell).stdout)
    subprocess.run([shell, "-n", str(script)], check=True)
