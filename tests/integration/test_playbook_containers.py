"""The containers playbook on rented machines: which engine is installed, and only where none is."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from cloudtrain.core import ship
from cloudtrain.core.errors import StepFailed
from cloudtrain.core.image_name import image_name
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.shell import Step
from cloudtrain.playbooks import containers
from tests.support.fake_machine import FakeMachine, fake_machine
from tests.support.nodes_here import node
from tests.support.sshd import eventually

IMAGE = image_name("it:1").pinned(f"sha256:{'a' * 64}")

PODMAN = 'case "$*" in *" info "*) echo "$(cat $STATE/podman-version) crun overlay";; esac'
DOCKER = 'case "$*" in version*) id -nG | grep -q docker && echo 27.0 || exit 1;; esac'
TOOLS = ("mkdir", "cksum", "tr", "readlink", "mktemp", "install")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Podman and Docker in its archive."""
    made = fake_machine(tmp_path, monkeypatch)
    monkeypatch.setattr(containers, "ROOT", str(tmp_path / "machine"))
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    programs = {
        "apt-cache": 'echo "  Candidate: $(cat $STATE/podman-version)"',
        "id": "case $1 in -u) echo 1000;; -nG) cat $STATE/groups;; *) echo me;; esac",
        "usermod": 'echo "usermod $*" >>$STATE/log\n'
        'case "$*" in *docker*) echo docker >$STATE/in;; esac',
        "systemctl": 'echo "systemctl $*" >>$STATE/log; [ "$1" != reboot ] || {\n'
        "echo again >>$STATE/boot; cat $STATE/in >>$STATE/groups 2>/dev/null; }",
        "dpkg": 'case "$1" in --compare-versions) [ "$2" \\> 4.1 ];; esac',
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).unlink(missing_ok=True)
        put(tmp_path / "bin" / name, text)
    made.put("archive", "podman", "crun", "uidmap", "fuse-overlayfs", "docker.io")
    made.put("podman-version", "4.9.3")
    made.put("groups", "me")
    for package, name, text in (("podman", "podman", PODMAN), ("docker.io", "docker", DOCKER)):
        put(tmp_path / name, text)
        made.put(f"brings-{package}", f"cp {tmp_path / name} {tmp_path}/bin/{name}")
    (tmp_path / "bin/cp").symlink_to("/usr/bin/cp")
    return made


def put(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def steps(provider: str = "gcp") -> tuple[Step, ...]:
    """Those before the image."""
    config = ClusterConfig(name="mnist", provider=provider, strategy="custom", nodes={})
    found = containers.steps(config, node(), IMAGE)
    return found[: [step.name for step in found].index(f"image {IMAGE.repository}")]


def installs(machine: FakeMachine) -> list[str]:
    return [line for line in machine.read("log") if line.startswith(("install", "usermod"))]


def test_podman_is_installed_where_it_is_new_enough_with_ids_for_its_user(
    machine: FakeMachine,
) -> None:
    machine.apply(steps())
    assert installs(machine) == [
        "install podman crun uidmap fuse-overlayfs",
        "usermod --add-subuids 100000-165535 me",
        "usermod --add-subgids 100000-165535 me",
    ]
    assert machine.apply(steps()) == ["nothing to do"]
    assert "systemctl reboot" not in machine.read("log")


def test_docker_is_where_podman_is_too_old_and_a_new_login_enters_its_group(
    machine: FakeMachine,
) -> None:
    machine.put("podman-version", "3.4.4")
    machine.apply(steps())
    assert installs(machine) == ["install docker.io", "usermod -aG docker me"]
    assert "systemctl reboot" in machine.read("log")
    assert machine.apply(steps()) == ["nothing to do"]


def with_gpu(machine: FakeMachine, key: str) -> None:
    (machine.root / "machine/dev").mkdir()
    (machine.root / "machine/dev/nvidiactl").touch()
    for folder in ("usr/share/keyrings", "etc/apt/sources.list.d"):
        (machine.root / "machine" / folder).mkdir(parents=True)
    for tool in ("tee", "chmod"):
        (machine.root / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    put(machine.root / "bin/curl", 'echo "curl $*" >>$STATE/log')
    put(machine.root / "bin/gpg", f"echo 'pub:-:4096:1:'; echo 'fpr:::::::::{key}:'")
    put(machine.root / "toolkit", 'echo "nvidia-ctk $*" >>$STATE/log; touch "${3#--output=}"')
    machine.put("archive", *machine.read("archive"), "curl", "gnupg", "ca-certificates")
    machine.put("archive", *machine.read("archive"), "nvidia-container-toolkit")
    brings = f"cp {machine.root}/toolkit {machine.root}/bin/nvidia-ctk"
    machine.put("brings-nvidia-container-toolkit", brings)


def test_gpus_get_nvidias_toolkit_from_its_own_repository_by_its_key(machine: FakeMachine) -> None:
    with_gpu(machine, "C95B321B61E88C1809C4F759DDCAE044F796ECB0")
    put(machine.root / "bin/nvidia-smi", "exit 0")
    machine.apply(steps())
    assert installs(machine)[-1] == "install nvidia-container-toolkit"
    spec = machine.root / "machine/etc/cdi/nvidia.yaml"
    assert f"nvidia-ctk cdi generate --output={spec}" in machine.read("log")
    listed = machine.root / "machine/etc/apt/sources.list.d/nvidia-container-toolkit.list"
    assert listed.read_text().startswith(
        "deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit.asc] https://nvidia.github.io/"
    )


def test_another_key_than_nvidias_is_refused(machine: FakeMachine) -> None:
    with_gpu(machine, "0" * 40)
    with pytest.raises(StepFailed, match="another key than before: 0000"):
        machine.apply(steps())
    assert "install nvidia-container-toolkit" not in installs(machine)


def test_what_is_there_is_used_as_it_is(machine: FakeMachine) -> None:
    put(machine.root / "bin/podman", PODMAN)
    machine.apply(steps())
    assert installs(machine) == []


def test_a_lent_machine_gets_nothing_and_is_told_what_is_missing(machine: FakeMachine) -> None:
    with pytest.raises(StepFailed, match="neither Podman nor Docker") as failed:
        machine.apply(steps("hosts"))
    assert failed.value.hint == "install Podman (4.1 or newer): sudo apt-get install podman"
    assert installs(machine) == []


def test_an_old_podman_of_a_lent_machine_is_named(machine: FakeMachine) -> None:
    machine.put("podman-version", "3.4.4")
    put(machine.root / "bin/podman", PODMAN)
    with pytest.raises(StepFailed, match=r"Podman is 3\.4\.4"):
        machine.apply(steps("hosts"))


def test_without_an_image_there_is_no_step() -> None:
    config = ClusterConfig(name="mnist", provider="gcp", strategy="custom", nodes={})
    assert containers.steps(config, node(), None) == ()


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images for a Podman whose pulls hang, and the PATH to it."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "engine").write_text("podman crun\n")
    (tmp_path / "programs").mkdir()
    put(
        tmp_path / "programs/podman",
        'echo "$*" >>$(dirname "$0")/asked; case "$*" in\n'
        '*" info "*) echo 4.9.3 crun overlay;; *" pull "*) exec sleep 300;; esac',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:/usr/bin:/bin")
    return folder


def verb(images: Path, *words: str) -> list[str]:
    return ["sh", "-c", ship.text("container.sh"), "sh", words[0], str(images), *words[1:]]


def test_what_a_killed_pull_has_left_in_memory_is_gone_before_a_container_starts(
    images: Path, tmp_path: Path
) -> None:
    words = verb(images, "pull", "it", "")
    pulling = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    assert pulling.stdin
    pulling.stdin.write(b'{"auths": {}}')
    pulling.stdin.close()
    asked = tmp_path / "programs/asked"
    eventually(lambda: asked.exists() and " pull " in asked.read_text())
    pulling.kill()
    pulling.wait()
    left = [*Path("/dev/shm").glob(f"cloudtrain-pull-{pulling.pid}-*/config.json")]
    subprocess.run(verb(images, "probe", "it"), check=True)
    subprocess.run(["pkill", "-KILL", "-s", str(pulling.pid)], check=False)
    assert [each.exists() for each in left] == [False]
    assert "--no-healthcheck" in asked.read_text()


def test_what_a_pull_has_in_memory_is_known_by_its_process_and_not_by_a_number_alone(
    images: Path, tmp_path: Path
) -> None:
    left = Path(tempfile.mkdtemp(prefix=f"cloudtrain-pull-{os.getpid()}-1-", dir="/dev/shm"))
    with subprocess.Popen(verb(images, "pull", "it", ""), stdin=subprocess.PIPE) as pulling:
        own = f"cloudtrain-pull-{pulling.pid}-*"
        eventually(lambda: [*Path("/dev/shm").glob(own)] != [])
        subprocess.run(verb(images, "probe", "it"), check=True)
        there = left.exists(), [*Path("/dev/shm").glob(own)] != []
        pulling.terminate()
    assert there == (False, True)
    assert [*Path("/dev/shm").glob(own)] == []


def test_an_engine_that_is_not_there_any_more_is_chosen_again(images: Path) -> None:
    (images / "engine").write_text("docker\n")
    assert subprocess.run(verb(images, "known"), check=False).returncode != 0
    subprocess.run(verb(images, "choose"), check=True)
    assert (images / "engine").read_text() == "podman crun\n"
    assert subprocess.run(verb(images, "known"), check=False).returncode == 0
