"""The whole job on `provider: local`, typed as a user types it, on real SSH servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.project import Project, until

SOON = {"FROZEN_AFTER": 3.0, "JOINED_LATE": 2.0}
"""Limits of two tests alike: each set of them takes a warm process of its own."""


def test_run_trains_lands_and_leaves_nothing(project: Project) -> None:
    done = project.cloudtrain("run", project.config())
    assert done.returncode == 0, done.stderr
    assert project.landed("chief0", "output/chief0.txt") == "done at 5\n"
    assert project.landed("worker0", "output/worker0.txt") == "done at 5\n"
    assert "chief0 │ chief0 step 5" in done.stdout
    (record,) = project.runs()
    assert (record["state"], record["exit_code"]) == ("succeeded", 0)
    assert project.processes() == {}
    assert not list(project.home.glob("local/*/*"))
    assert not list(project.home.rglob("*lock*"))
    assert not list(project.home.glob("clusters/*/key*"))


def test_up_train_status_down_one_by_one(project: Project) -> None:
    config = project.config()
    assert project.cloudtrain("up", config, "--json").returncode == 0
    again = project.cloudtrain("up", config)
    assert again.returncode == 0, again.stderr

    trained = project.cloudtrain("train", "--json", "--", "--steps", "3")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["state"] == "succeeded"
    assert project.landed("chief0", "output/chief0.txt") == "done at 3\n"

    status = json.loads(project.cloudtrain("status", "--json").stdout)
    (cluster,) = status["clusters"]
    assert [node["state"] for node in cluster["nodes"]] == ["running", "running"]

    down = project.cloudtrain("down")
    assert down.returncode == 0, down.stderr
    assert project.processes() == {}
    logs = project.cloudtrain("logs", project.name)
    assert "chief0 step 3" in logs.stdout
    fetched = project.cloudtrain("fetch", project.name, project.folder / "home again")
    assert fetched.returncode == 0, fetched.stderr
    assert list((project.folder / "home again").rglob("chief0.txt"))


def test_each_role_runs_its_own_program_with_the_words_after_the_dashes(project: Project) -> None:
    for name in ("one", "two"):
        program = "import pathlib, sys; out = pathlib.Path(sys.argv[1]); out.mkdir(exist_ok=True)\n"
        program += f"(out / 'words').write_text(' '.join(['{name}', *sys.argv[2:]]))\n"
        (project.code / f"{name}.py").write_text(program)
    lines = {
        "worker": "python3 two.py {output} {chief.hosts}",
        "default": "python3 one.py {output}",
    }
    config = project.config(strategy="custom", train={"command": lines})
    assert project.cloudtrain("up", config).returncode == 0
    done = project.cloudtrain("train", project.name, "--", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert project.landed("chief0", "output/words") == "one --steps 2"
    assert re.fullmatch(
        r"two 127\.[0-9.]+:[0-9]+ --steps 2", project.landed("worker0", "output/words")
    )
    (record,) = project.runs()
    assert record["command"] == f"{lines['default']} --steps 2"
    assert record["commands"] == {"worker": f"{lines['worker']} --steps 2"}


def test_a_cluster_is_made_smaller_and_what_the_node_held_has_landed(project: Project) -> None:
    config = project.config(nodes={"chief": {}, "worker": {"count": 2}})
    assert project.cloudtrain("up", config).returncode == 0
    assert project.cloudtrain("train", "--", "--steps", "2").returncode == 0
    late = "cd .cloudtrain/*/runs/*/worker1/work && echo late >output/late.txt"
    made = project.cloudtrain("exec", project.name, "--role", "worker1", "--", "sh", "-c", late)
    assert made.returncode == 0, made.stderr
    config = project.config(nodes={"chief": {}, "worker": {"count": 1}})
    refused = project.cloudtrain("up", config)
    assert (refused.returncode, "--shrink" in refused.stderr) == (2, True)
    done = project.cloudtrain("up", config, "--shrink")
    assert done.returncode == 0, done.stderr
    assert project.landed("worker1", "output/late.txt") == "late\n"
    status = json.loads(project.cloudtrain("status", "--json").stdout)
    assert [node["name"] for node in status["clusters"][0]["nodes"]] == [
        f"{project.name}-chief0",
        f"{project.name}-worker0",
    ]
    again = project.cloudtrain("train", "--", "--steps", "2")
    assert again.returncode == 0, again.stderr


def test_the_records_are_for_their_owner_only(project: Project) -> None:
    assert project.cloudtrain("up", project.config()).returncode == 0
    assert project.cloudtrain("train").returncode == 0
    assert project.cloudtrain("ssh", project.name, "worker0", "--", "true").returncode == 0
    places = [*(project.home / "clusters").rglob("*"), *(project.home / "local").glob("*/*/*")]
    places += [project.home, *(project.home / "local").glob("*/*"), project.home / "local"]
    places += (project.home / "local").glob("*")
    for path in places:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} {mode:o}"


HORRORS = {
    "SPACES": "two  words ",
    "QUOTES": 'it\'s "quoted" `id`',
    "SHELL": "$(touch INJECTED); touch INJECTED2 & $HOME",
    "LINES": "first\nsecond\n",
    "WORDS": "Grüße, мир, 世界, 🙂",
    "BRACES": "{not} {a} placeholder {",
}


def test_config_values_arrive_as_written_and_execute_nothing(project: Project) -> None:
    (project.code / "show.py").write_text(
        "import json, os, pathlib\n"
        "out = pathlib.Path(os.environ['CLOUDTRAIN_OUTPUT'])\n"
        "(out / 'env.json').write_text(json.dumps(dict(os.environ)))\n"
    )
    # `$${` is how the file writes a literal `${`
    config = project.config(train={"command": "python3 show.py", "env": HORRORS})
    done = project.cloudtrain("run", config)
    assert done.returncode == 0, done.stderr
    seen = json.loads(project.landed("worker0", "output/env.json"))
    assert {name: seen[name] for name in HORRORS} == HORRORS
    cluster = json.loads(seen["TF_CONFIG"])
    assert cluster["task"] == {"type": "worker", "index": 0}
    assert list(cluster["cluster"]) == ["chief", "worker"]
    assert not list(project.folder.rglob("INJECTED*"))


def test_a_secret_is_on_no_disk_and_in_no_output(project: Project) -> None:
    project.environment["TOKEN_HERE"] = "s3cr3t-" + "x" * 20
    (project.code / "show.py").write_text(
        "import os, hashlib\nprint('length', len(os.environ['TOKEN']), flush=True)\n"
    )
    config = project.config(
        train={"command": "python3 show.py"}, secrets={"TOKEN": "${TOKEN_HERE}"}
    )
    done = project.cloudtrain("run", config, "--keep-on-failure")
    assert done.returncode == 0, done.stderr
    assert "length 27" in done.stdout
    secret = project.environment["TOKEN_HERE"]
    assert secret not in done.stdout + done.stderr
    for path in project.folder.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_interrupting_train_detaches_and_logs_reattaches(project: Project) -> None:
    config = project.config(train={"command": "python3 rank.py --steps 60 --pause 0.05"})
    assert project.cloudtrain("up", config).returncode == 0
    train = project.start("train")
    until(lambda: "chief0 step 3" in project.stdout, 60)
    train.send_signal(signal.SIGINT)
    assert train.wait(60) == 130
    assert "continues in the background" in project.stderr
    followed = project.cloudtrain("logs", "-f")
    assert followed.returncode == 0, followed.stderr
    steps = [line for line in followed.stdout.splitlines() if "chief0 step" in line]
    assert steps == [f"chief0 │ chief0 step {n}" for n in range(1, 61)]


def test_a_run_survives_the_death_of_the_tool_and_logs_takes_over(project: Project) -> None:
    config = project.config(train={"command": "python3 rank.py --steps 40 --pause 0.05"})
    assert project.cloudtrain("up", config).returncode == 0
    train = project.start("train")
    until(lambda: "chief0 step 3" in project.stdout, 60)
    train.kill()
    train.wait()
    followed = project.cloudtrain("logs", "-f")
    assert followed.returncode == 0, followed.stderr
    steps = [line for line in followed.stdout.splitlines() if "worker0 step" in line]
    assert steps == [f"worker0 │ worker0 step {n}" for n in range(1, 41)]
    (record,) = project.runs()
    assert record["state"] == "succeeded"


def test_a_parent_that_ignores_sigchld_is_no_matter(project: Project) -> None:
    """As some supervisors and language runtimes do; who they start inherits it."""
    start = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, sys.executable, "-m", "cloudtrain", "run", project.config()],
        capture_output=True,
        text=True,
        env=project.environment,
        cwd=project.folder,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [record["state"] for record in project.runs()] == ["succeeded"]


def test_exec_names_the_nodes_that_it_leaves_out_and_does_not_end_well(project: Project) -> None:
    assert project.cloudtrain("up", project.config()).returncode == 0
    os.kill(server_of(project, "worker0"), signal.SIGKILL)
    until(lambda: "stopped" in project.cloudtrain("status").stdout, 60)
    done = project.cloudtrain("exec", project.name, "--", "echo", "here")
    assert done.returncode == 1
    assert done.stdout == "chief0 │ here\n"
    assert "skipped: worker0 (stopped)" in done.stderr
    chosen = project.cloudtrain("exec", project.name, "--role", "chief", "--", "true")
    assert (chosen.returncode, "left out" in chosen.stderr) == (0, False)
    none = project.cloudtrain("exec", project.name, "--role", "worker", "--", "true")
    assert none.returncode == 2
    assert "worker0 (stopped)" in none.stderr


def server_of(project: Project, task: str) -> int:
    """The process of a node's SSH server."""
    end = f"/{project.name}-{task}\0".encode()
    for pid, words in project.processes().items():
        variables = Path(f"/proc/{pid}/environ").read_bytes().partition(b"CLOUDTRAIN_NODE=")[2]
        if "fork_server" in words and end in variables[:200]:
            return pid
    raise AssertionError(f"no server of {task}")


def test_stop_run_ends_every_task_and_lands_what_there_is(project: Project) -> None:
    (project.code / "forever.sh").write_text("echo made > output/made\nsleep 1000 & sleep 1000\n")
    config = project.config(train={"command": "sh forever.sh"}, strategy="custom")
    assert project.cloudtrain("up", config).returncode == 0
    assert project.cloudtrain("train", "--detach").returncode == 0
    until(lambda: list(project.home.rglob("output/made")), 60)
    stopped = project.cloudtrain("stop-run")
    assert stopped.returncode == 0, stopped.stderr
    assert project.landed("chief0", "output/made") == "made\n"
    assert not [words for words in project.processes().values() if "sleep 1000" in words]


def test_the_second_command_on_a_cluster_says_who_holds_the_lock(project: Project) -> None:
    config = project.config(train={"command": "python3 rank.py --steps 100 --pause 0.1"})
    assert project.cloudtrain("up", config).returncode == 0
    train = project.start("train")
    until(lambda: "chief0 step 1" in project.stdout, 60)
    second = project.cloudtrain("up", config)
    assert second.returncode == 2
    assert f"pid {train.pid}" in second.stderr
    stopped = project.cloudtrain("stop-run")
    assert stopped.returncode == 0, stopped.stderr
    assert train.wait(60) == 1


# ── What goes wrong ──────────────────────────────────────────────────────────


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_killed_worker_is_named_as_the_cause(project: Project) -> None:
    config = project.config(
        nodes={"chief": {}, "worker": {"count": 2}},
        train={"command": "python3 rank.py --steps 1000 --pause 0.1"},
    )
    run = project.start("run", config)
    until(lambda: "worker1 step 2" in project.stdout, 60)
    os.kill(project.pid_of("worker1"), signal.SIGKILL)
    assert run.wait(60) == 1
    assert "worker1" in project.stderr
    assert "SIGKILL" in project.stderr
    assert project.processes() == {}


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_killed_worker_is_restarted_from_the_checkpoint(project: Project) -> None:
    config = project.config(
        train={"command": "python3 rank.py --steps 40 --pause 0.05", "max_restarts": 1}
    )
    run = project.start("run", config)
    until(lambda: "worker0 step 5" in project.stdout, 60)
    os.kill(project.pid_of("worker0"), signal.SIGKILL)
    assert run.wait(60) == 0, project.stderr
    (record,) = project.runs()
    assert [attempt["number"] for attempt in record["attempts"]] == [1, 2]
    begun = [line for line in project.stdout.splitlines() if "begins at step" in line]
    assert begun[2].split()[-1] == begun[3].split()[-1] != "0"
    assert "resumes from" in project.stderr


@pytest.mark.sweep(8, of="what goes wrong")
def test_without_train_checkpoints_a_restarted_run_starts_over_and_loses_no_artifact(
    project: Project,
) -> None:
    (project.code / "first.sh").write_text(
        "mkdir -p output && echo made > output/attempt-$(ls ckpt 2>/dev/null | wc -l)-$RANDOM$$\n"
        "exec python3 rank.py --steps 40 --pause 0.05\n"
    )
    config = project.config(
        train={"command": "bash first.sh", "max_restarts": 1, "checkpoints": None}
    )
    run = project.start("run", config)
    until(lambda: "worker0 step 5" in project.stdout, 60)
    os.kill(project.pid_of("worker0"), signal.SIGKILL)
    assert run.wait(60) == 0, project.stderr
    assert "this attempt starts from the beginning" in project.stderr
    begun = [line.split()[-1] for line in project.stdout.splitlines() if "begins at step" in line]
    assert begun == ["0"] * 4
    assert len(list(project.store.glob("*/chief0/output/attempt-0-*"))) == 2


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_dead_node_is_replaced_for_the_next_attempt(project: Project) -> None:
    config = project.config(
        train={"command": "python3 rank.py --steps 40 --pause 0.05", "max_restarts": 1}
    )
    run = project.start("run", config)
    until(lambda: "worker0 step 5" in project.stdout, 60)
    for pid, words in project.processes().items():
        if f"{project.name}-worker0" in words and "rank.py" not in words:
            with suppress(ProcessLookupError):  # the sampler ends with its watcher
                os.kill(pid, signal.SIGKILL)
    os.kill(project.pid_of("worker0"), signal.SIGKILL)
    assert run.wait(90) == 0, project.stderr
    assert project.landed("worker0", "output/worker0.txt") == "done at 40\n"


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_frozen_worker_is_named_as_the_cause(project: Project) -> None:
    project.limits = SOON
    config = project.config(train={"command": "python3 rank.py --steps 1000 --pause 0.1"})
    run = project.start("run", config)
    until(lambda: "worker0 step 2" in project.stdout, 60)
    os.kill(project.pid_of("worker0"), signal.SIGSTOP)
    assert run.wait(60) == 1
    assert "worker0" in project.stderr
    assert "frozen" in project.stderr or "stopped" in project.stderr
    assert project.processes() == {}


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_worker_that_never_starts_is_named(project: Project) -> None:
    config = project.config(
        train={"command": "python3 rank.py --never-start worker0", "start_timeout": "3s"}
    )
    done = project.cloudtrain("run", config)
    assert done.returncode == 1
    assert "worker0" in done.stderr
    assert "did not open its port" in done.stderr
    (stacks,) = project.store.glob("*/logs/worker0.attempt-1.stacks")
    assert "python3" in stacks.read_text()


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_run_in_which_nothing_moves_says_so_and_goes_on(project: Project) -> None:
    (project.code / "hangs.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    project.limits = {"STILL": 6.0, "runs.stall_watch.AGAIN": 2.0}
    config = project.config(train={"command": "python3 hangs.py"}, strategy="custom")
    for file in project.code.iterdir():  # a new file would be the task's
        os.utime(file, (1e9, 1e9))
    run = project.start("run", config)
    until(lambda: "nothing has moved for" in project.stderr, 60)
    assert re.search("chief0, worker0 wait( in a sleep .python3.*)?; `cloudtrain", project.stderr)
    until(lambda: "nothing has moved for" in project.cloudtrain("status", "--offline").stdout, 60)
    assert project.cloudtrain("stop-run").returncode == 0
    assert run.wait(60) == 1
    (page,) = project.store.glob("*/report.html")
    assert "nothing moved for" in page.read_text("utf-8")


@pytest.mark.sweep(8, of="what goes wrong")
@pytest.mark.parametrize("code", [0, 3])
def test_a_task_that_ends_before_it_serves_ends_the_run_and_is_named(
    project: Project, code: int
) -> None:
    project.limits = SOON
    config = project.config(
        nodes={"chief": {}, "worker": {"count": 2}},
        train={"command": f"python3 rank.py --quit worker1 {code}"},
    )
    done = project.cloudtrain("run", config, timeout=60)
    assert done.returncode == 1
    assert f"error: worker1 on {project.name}-worker1: " in done.stderr
    assert f"exit code {code}" in done.stderr
    assert "before it joined the cluster" in done.stderr
    (record,) = project.runs()
    cause = record["attempts"][0]["cause"]
    assert (cause["kind"], cause["task"], cause["exit_code"]) == ("not_started", "worker1", code)
    assert project.processes() == {}


PARAMETER_SERVERS = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
port = lambda kind, index: int(config["cluster"][kind][index].rsplit(":", 1)[1])
print(f"{kind}{index} started, pid {os.getpid()}", flush=True)
if f"{kind}{index}" == os.environ.get("QUITS"):
    raise FileNotFoundError("no data here")
if kind != "chief":
    server = socket.create_server(("", port(kind, index)))
    time.sleep(1000)
for kind in ("worker", "ps"):
    for index in range(len(config["cluster"][kind])):
        while True:
            try:
                socket.create_connection(("127.0.0.1", port(kind, index)))
                break
            except OSError:
                time.sleep(0.05)
for step in range(int(os.environ["STEPS"])):
    print(f"chief0 step {step}", flush=True)
    time.sleep(0.1)
open("output/model", "w").write("done")
"""


def parameter_servers(project: Project, **env: str) -> Path:
    """The shape of a parameter server job: the chief waits until it has reached every other."""
    (project.code / "servers.py").write_text(PARAMETER_SERVERS)
    return project.config(
        strategy="parameter_server",
        nodes={"chief": {}, "worker": {"count": 2}, "ps": {}},
        train={"command": "python3 servers.py", "env": {"STEPS": "20", **env}},
    )


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_worker_of_a_parameter_server_job_that_never_served_is_not_done_without(
    project: Project,
) -> None:
    done = project.cloudtrain("run", parameter_servers(project, QUITS="worker0"), timeout=60)
    assert done.returncode == 1
    assert f"error: worker0 on {project.name}-worker0: exit code 1: FileNotFound" in done.stderr
    assert "the run continues" not in done.stderr
    (record,) = project.runs()
    assert record["attempts"][0]["cause"]["kind"] == "not_started"
    assert record["clustered"] is False


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_worker_that_dies_after_the_cluster_stood_is_done_without(project: Project) -> None:
    run = project.start("run", parameter_servers(project, STEPS="60"))
    until(lambda: "cluster formed after" in project.stderr, 60)
    os.kill(project.pid_of("worker1"), signal.SIGKILL)
    assert run.wait(60) == 0, project.stderr
    assert "worker1 has failed: killed by signal 9; the run continues" in project.stderr
    (record,) = project.runs()
    assert record["clustered"] is True
    assert record["attempts"][0]["formed_after"] > 0


@pytest.mark.sweep(8, of="what goes wrong")
def test_tasks_that_each_train_alone_are_no_success(project: Project) -> None:
    config = project.config(train={"command": "python3 rank.py --alone 3 --output {output}"})
    done = project.cloudtrain("run", config, timeout=60)
    assert done.returncode == 1
    assert "error: the tasks never formed a cluster: 2 separate trainings" in done.stderr
    (record,) = project.runs()
    assert (record["state"], record["clustered"]) == ("failed", False)
    assert project.landed("worker0", "output/worker0.txt") == "done alone\n"
    status = project.cloudtrain("status", project.name).stdout
    assert "\n    the tasks never formed a cluster: 2 separate trainings\n" in status


@pytest.mark.sweep(8, of="what goes wrong")
def test_tasks_that_are_meant_to_be_alone_are_not_judged(project: Project) -> None:
    alone = "python3 rank.py --alone 2.5 --output {output}"
    config = project.config(
        strategy="custom",
        nodes={"worker": {"count": 2}},
        train={"command": alone, "tf_config": True},
    )
    done = project.cloudtrain("run", config, timeout=60)
    assert done.returncode == 0, done.stderr
    (*_, record) = project.runs()
    assert record["clustered"] is None


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_run_of_a_moment_whose_cluster_stood_is_a_success(project: Project) -> None:
    done = project.cloudtrain("run", project.config(train={"command": "python3 rank.py --steps 1"}))
    assert done.returncode == 0, done.stderr
    (record,) = project.runs()
    assert record["clustered"] is True
    assert "cluster formed after" in done.stderr


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_script_that_raises_is_named_with_its_last_lines(project: Project) -> None:
    config = project.config(train={"command": "python3 rank.py --raise-in worker0"})
    done = project.cloudtrain("run", config, "--json")
    assert done.returncode == 1
    assert "ValueError: the data is bad" in done.stderr
    assert json.loads(done.stdout)["error"]["task_exit_code"] == 1


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_script_that_does_not_exist_is_one_clear_error(project: Project) -> None:
    done = project.cloudtrain("run", project.config(train={"command": "python3 nothing.py"}))
    assert done.returncode == 1
    assert "nothing.py" in done.stderr
    assert "Traceback" not in done.stderr
    assert project.processes() == {}


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_port_in_use_is_found_before_the_start(project: Project) -> None:
    with socket.create_server(("", project.port + 1)):
        done = project.cloudtrain("run", project.config())
    assert done.returncode == 1
    assert f"port {project.port + 1} is in use" in done.stderr
    assert project.processes() == {}


@pytest.mark.sweep(8, of="what goes wrong")
def test_the_node_of_a_failed_preflight_is_named_once(project: Project) -> None:
    config = project.config()
    with socket.create_server(("", project.port + 1)):
        done = project.cloudtrain("run", config)
    (record,) = project.runs()
    cause = record["attempts"][0]["cause"]
    assert (cause["task"], cause["node"]) == ("worker0", f"{project.name}-worker0")
    assert cause["text"].startswith(f"port {project.port + 1} is in use by pid {os.getpid()} (")
    assert "end it" not in done.stderr
    assert "hint: clusters of `provider: local` share this machine's ports" in done.stderr
    shown = project.cloudtrain("status", project.name).stdout
    assert shown.count(f"worker0 on {project.name}-worker0: port") == 1


@pytest.mark.sweep(8, of="what goes wrong")
def test_rehearsals_side_by_side_do_not_touch_each_other(tmp_path: Path) -> None:
    projects = [Project(tmp_path / f"{number}") for number in range(4)]
    try:
        for project in projects:
            project.config(train={"port": None, "command": "python3 rank.py --steps 10"})
        runs = [project.start("run", project.folder / "cluster.yaml") for project in projects]
        assert [run.wait(100) for run in runs] == [0] * 4, [p.stderr for p in projects]
        ports = [task["port"] for p in projects for task in p.runs()[0]["tasks"]]
        assert len(set(ports)) == 8
    finally:
        for project in projects:
            project.end()


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_port_taken_after_up_is_passed_over_where_the_file_names_none(project: Project) -> None:
    config = project.config(train={"port": None})
    assert project.cloudtrain("up", config).returncode == 0
    found = project.home.glob("local/*/*-worker0/node.json")
    (first, *_) = json.loads(next(iter(found)).read_text())["task_ports"]
    with socket.create_server(("", first)):
        trained = project.cloudtrain("train")
    assert trained.returncode == 0, trained.stderr
    assert f"port {first} is in use" in trained.stderr
    (record,) = project.runs()
    assert record["tasks"][1]["port"] != first


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_detached_start_that_fails_leaves_no_run_that_goes_on(project: Project) -> None:
    config = project.config()
    assert project.cloudtrain("up", config).returncode == 0
    with socket.create_server(("", project.port + 1)):
        refused = project.cloudtrain("train", "--detach")
    assert refused.returncode == 1
    assert f"port {project.port + 1} is in use" in refused.stderr
    trained = project.cloudtrain("train")
    assert trained.returncode == 0, trained.stderr


def test_train_with_a_file_runs_what_the_file_says_now(project: Project) -> None:
    assert project.cloudtrain("up", project.config()).returncode == 0
    changed = project.config(train={"command": "python3 rank.py --steps 2 --output {output}"})
    trained = project.cloudtrain("train", changed)
    assert trained.returncode == 0, trained.stderr
    assert project.landed("chief0", "output/chief0.txt") == "done at 2\n"


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_run_that_did_not_make_what_is_required_has_failed_and_its_nodes_go(
    project: Project,
) -> None:
    config = project.config(artifacts={"require": ["output/model/saved_model.pb"]})
    done = project.cloudtrain("run", config)
    assert done.returncode == 1
    why = "no task created what artifacts.require lists: output/model/saved_model.pb"
    assert why in done.stderr
    assert project.processes() == {}
    (record,) = project.runs()
    assert (record["state"], record["exit_code"]) == ("failed", 1)
    cause = record["attempts"][-1]["cause"]
    assert (cause["kind"], cause["task"]) == ("require", "")
    assert why in cause["text"]
    assert why in project.cloudtrain("status", project.name).stdout
    assert project.landed("chief0", "output/chief0.txt") == "done at 5\n"


@pytest.mark.sweep(8, of="what goes wrong")
def test_without_a_chief_the_hint_says_who_would_have_saved(project: Project) -> None:
    config = project.config(
        artifacts={"require": ["output/model"]}, nodes={"chief": False, "worker": {"count": 2}}
    )
    done = project.cloudtrain("run", config, "--keep-on-failure")
    assert done.returncode == 1
    assert "`chief: false`" in done.stderr
    assert project.processes() != {}
    assert project.cloudtrain("down").returncode == 0


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_run_that_swallows_its_error_or_lands_nothing_says_so(project: Project) -> None:
    (project.code / "swallows.py").write_text(SWALLOWS)
    config = project.config(train={"command": "python3 swallows.py"}, strategy="custom")
    done = project.cloudtrain("run", config, "--json")
    assert done.returncode == 0, done.stderr
    assert "no task wrote a file to land" in done.stderr
    doubt = "chief0 exited with 0 after ModuleNotFoundError: No module named 'nosuchmodule'"
    assert doubt in done.stderr
    (record,) = project.runs()
    assert record["doubts"][0]["text"] == doubt
    assert json.loads(done.stdout)["doubts"] == record["doubts"]
    assert f"warning: {doubt}" in project.cloudtrain("status", project.name).stdout
    (page,) = project.store.glob("*/report.html")
    assert "after ModuleNotFoundError" in page.read_text("utf-8")


SWALLOWS = """
import traceback
print("step 1", flush=True)
try:
    import nosuchmodule
except ImportError:
    traceback.print_exc()
"""


@pytest.mark.sweep(8, of="what goes wrong")
def test_a_store_that_is_a_file_is_refused_before_anything_is_made(project: Project) -> None:
    project.store.write_text("not a folder")
    done = project.cloudtrain("run", project.config())
    assert done.returncode in (2, 4, 5)
    assert str(project.store) in done.stderr
    assert not list(project.home.glob("local/*"))


@pytest.mark.sweep(8, of="what goes wrong")
def test_down_keeps_the_nodes_while_the_store_cannot_take_what_they_hold(project: Project) -> None:
    config = project.config()
    assert project.cloudtrain("up", config).returncode == 0
    train = project.start("train")
    until(lambda: "chief0 step 1" in project.stdout, 60)
    train.kill()
    train.wait()
    until(lambda: list(project.home.rglob("output/chief0.txt")), 60)
    aside = project.store.rename(project.folder / "aside") if project.store.exists() else None
    project.store.write_text("in the way")
    down = project.cloudtrain("down")
    assert down.returncode == 5, down.stderr
    assert project.processes() != {}
    project.store.unlink()
    if aside is not None:
        aside.rename(project.store)
    down = project.cloudtrain("down")
    assert down.returncode == 0, down.stderr
    assert project.landed("chief0", "output/chief0.txt") == "done at 5\n"
    (record,) = project.runs()
    assert record["state"] == "succeeded"
    assert "chief0 done" in project.landed("logs", "chief0.attempt-1.log")
    assert project.processes() == {}


MOMENTS = ["up", "create", "start", "started", "ended", "down", "destroy"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_of_run_then_down_leaves_nothing_and_loses_nothing(
    project: Project, moment: str
) -> None:
    run = project.start("run", project.config())
    event = f'"event": "{moment}"'
    until(
        lambda: any(event in p.read_text() for p in project.home.glob("clusters/*/events.jsonl")),
        60,
        f"event {moment}: {project.stderr}",
    )
    run.kill()
    run.wait()
    down = project.cloudtrain("down", project.folder / "cluster.yaml")
    assert down.returncode == 0, down.stderr
    assert project.processes() == {}
    assert not list(project.home.glob("local/*/*"))
    assert not list(project.home.rglob("*lock*"))
    if moment in ("ended", "down", "destroy"):
        assert project.landed("chief0", "output/chief0.txt") == "done at 5\n"


@pytest.mark.skipif(not shutil.which("ssh"), reason="ssh is not on this machine")
def test_plain_ssh_reaches_a_node_by_its_name(project: Project) -> None:
    assert project.cloudtrain("up", project.config()).returncode == 0
    path = project.folder / "ssh config"
    path.write_text(project.cloudtrain("ssh-config").stdout)
    done = subprocess.run(
        ["ssh", "-F", str(path), f"{project.name}-worker0", "echo", "reached"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "reached\n", done.stderr
    shown = project.cloudtrain("exec", project.name, "--", "echo", "two  words")
    assert "worker0 │ two  words" in shown.stdout


def test_the_module_and_the_command_are_one(project: Project) -> None:
    command = Path(sys.executable).parent / "cloudtrain"
    assert project.cloudtrain("--version").stdout.startswith("cloudtrain")
    assert command.exists()
