"""The command lines of containers, as Docker and Podman get them (node/container.sh)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cloudtrain.core.model import ClusterConfig, Setup, Train
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.shell import Secret
from cloudtrain.playbooks import containers
from tests.support.nodes_here import node

DIGEST = f"sha256:{'a' * 64}"
TASK = Task(role="chief", index=0, node="mnist-chief0", port=8900, attempt=1)
RUN = Run(
    id="20261121-062404-k3f9",
    cluster="mnist",
    command="",
    state="running",
    created=0.0,
    tasks=(TASK,),
    image=f"docker.io/me/it:1@{DIGEST}",
)
ENGINES = {"docker": "docker", "podman": "podman crun", "old podman": "podman runc"}


def config(provider: str = "gcp") -> ClusterConfig:
    return ClusterConfig(
        name="mnist",
        provider=provider,
        strategy="custom",
        nodes={},
        setup=Setup(image="me/it:1"),
        train=Train(grace=7.0),
    )


class Home:
    """A node's home with an engine that only notes what it gets."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.home = folder / "it's home"
        self.programs = folder / "programs"
        self.programs.mkdir()
        images = self.home / ".cache/cloudtrain/images"
        images.mkdir(parents=True)
        (images / "engine").write_text(f"{engine}\n")
        self.task = self.home / f".cloudtrain/mnist/runs/{RUN.id}/chief0"
        for name in ("code/src", "attempt-1"):
            (self.task / name).mkdir(parents=True)
        for name in ("docker", "podman"):
            program = self.programs / name
            program.write_text(
                f"#!/bin/sh\nfor word; do echo \"$word\"; done >'{folder}/words'\n"
                f"env >'{folder}/env'\ncat >'{folder}/stdin'\nexit 9\n"
            )
            program.chmod(0o755)
        self.folder = folder

    def run(self, provider: str = "gcp", *folders: str) -> int:
        inside = containers.contained(
            config(provider),
            RUN,
            TASK,
            node(),
            command="echo 'it''s'",
            environment={"TOKEN": Secret("s3cret"), "TF_CONFIG": "{}"},
            folders=folders,
        )
        text = inside.environment[containers.INSIDE]
        assert isinstance(text, Secret)
        done = subprocess.run(
            ["/bin/sh", "-c", inside.command],
            cwd=self.task / "code/src",
            env={
                "HOME": str(self.home),
                "PATH": f"{self.programs}:/usr/bin:/bin",
                "CLOUDTRAIN_TASK": f"mnist/{RUN.id}/chief0/1",
                containers.INSIDE: text.reveal(),
            },
            check=False,
        )
        return done.returncode

    def words(self) -> list[str]:
        return (self.folder / "words").read_text().splitlines()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_container_gets_no_more_rights_than_a_task_has(tmp_path: Path, engine: str) -> None:
    there = Home(tmp_path, ENGINES[engine])
    assert there.run() == 9
    words = there.words()
    for flag in ("--cap-drop=ALL", "no-new-privileges", "--pull=never", "--network=host", "--rm"):
        assert flag in words
    assert words[words.index("--name") + 1] == f"cloudtrain.mnist.{RUN.id}.chief0.1"
    assert words[words.index("--workdir") + 1] == str(there.task / "code/src")
    assert words[-2:] == [f"docker.io/me/it@{DIGEST}", "-s"]
    assert not [word for word in words if "privileged" in word and word != "no-new-privileges"]
    assert not [word for word in words if "docker.sock" in word]
    mounts = [words[at + 1] for at, word in enumerate(words) if word == "-v"]
    assert sorted(mounts) == sorted(
        f"{path}:{path}" for path in (there.task / "code", there.home / "home")
    )
    assert ("--log-driver=none" in words) == (engine == "docker")
    assert ("--cgroups=disabled" in words) == (engine == "podman"), "runc cannot do that"


@pytest.mark.parametrize("engine", ENGINES)
def test_variables_go_in_by_stdin_alone(tmp_path: Path, engine: str) -> None:
    there = Home(tmp_path, ENGINES[engine])
    there.run()
    assert "s3cret" not in "\n".join(there.words())
    assert "s3cret" not in (tmp_path / "env").read_text()
    inside = tmp_path / "stdin"
    assert "export TOKEN=s3cret\n" in inside.read_text()
    alone = ["unshare", "-r", "--fork", "--pid", "--mount-proc", "/bin/sh", "-s"]
    done = subprocess.run(alone, stdin=inside.open(), capture_output=True, text=True, check=False)
    if "Operation not permitted" not in done.stderr:
        assert (done.stdout, done.returncode) == ("its\n", 0), done.stderr


def test_what_arrives_in_part_is_not_run(tmp_path: Path) -> None:
    there = Home(tmp_path, "docker")
    there.run()
    whole = (tmp_path / "stdin").read_bytes()
    done = subprocess.run(
        ["/bin/sh", "-s"], input=whole[: len(whole) // 2], capture_output=True, check=False
    )
    assert done.returncode != 0
    assert done.stdout == b""


def test_on_a_lent_machine_the_home_is_the_tasks_own(tmp_path: Path) -> None:
    there = Home(tmp_path, "podman crun")
    data = tmp_path / "data"
    data.mkdir()
    there.run("hosts", str(data))
    words = there.words()
    mounts = [words[at + 1] for at, word in enumerate(words) if word == "-v"]
    assert f"{there.home / 'home'}:{there.home / 'home'}" not in mounts
    assert f"{there.task / 'home'}:{there.task / 'home'}" in mounts
    assert f"{data}:{data}" in mounts
    assert f"HOME={there.task / 'home'}" in words


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_left_of_a_container_can_be_removed_by_whoever_ends_its_task(
    tmp_path: Path, engine: str
) -> None:
    there = Home(tmp_path, ENGINES[engine])
    there.run()
    removal = there.task / "attempt-1/end-container"
    environ = {"PATH": f"{there.programs}:/usr/bin:/bin"}
    subprocess.run([removal], env=environ, stdin=subprocess.DEVNULL, check=False)
    assert there.words()[-3:] == ["rm", "-f", f"cloudtrain.mnist.{RUN.id}.chief0.1"]
