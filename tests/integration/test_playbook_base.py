"""The base playbook: a machine that has just booted, waited for, left alone by its own upgrades."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import Accelerator, ClusterConfig, Code, NodeGroup, Setup
from cloudtrain.playbooks import base, tensorflow
from cloudtrain.playbooks.apply import apply
from tests.support.fake_machine import FakeMachine, fake_machine
from tests.support.nodes_here import HereTransport, Remembered, node


def config(provider: Any = "gcp", **more: Any) -> ClusterConfig:
    return ClusterConfig(name="mnist", provider=provider, strategy="mirrored", nodes={}, **more)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """With git in its archive, and a clock that is set as soon as it is asked for."""
    made = fake_machine(tmp_path, monkeypatch)
    for tool in ("python3", "tar"):
        (tmp_path / "bin" / tool).symlink_to("/usr/bin/true")
    made.put("archive", "git", "python3-venv", "ca-certificates")
    made.put("brings-git", f"ln -s /usr/bin/true {tmp_path}/bin/git")
    made.put("has-ntp")
    return made


WITH_GIT = config(code=Code(git="https://example.org/x.git"))


def applied(machine: FakeMachine, wanted: ClusterConfig = WITH_GIT) -> list[str]:
    return machine.apply(base.steps(wanted, node()))


@pytest.mark.parametrize("provider", ["local", "hosts"])
def test_machines_that_are_not_rented_are_left_as_they_are(provider: str) -> None:
    assert base.steps(config(provider), node()) == ()


def test_the_packages_follow_what_is_asked_for() -> None:
    always = ("ca-certificates", "python3", "tar", "procps")
    assert base.packages(config()) == always
    assert base.packages(WITH_GIT) == (*always, "git")
    assert base.packages(config(setup=Setup(tensorflow="2.21"))) == (*always, "python3-venv")


def test_a_machine_that_has_just_booted_is_brought_to_where_others_can_start(
    machine: FakeMachine,
) -> None:
    shown = applied(machine)
    assert [line for line in shown if ":" not in line and not line.endswith(" s")] == [
        *("first boot", "no automatic upgrades", "packages", "clock")
    ]
    assert shown[-1].startswith("4 of 4 steps")
    units = "apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service"
    assert f"systemctl mask {units} unattended-upgrades.service" in machine.read("log")
    assert "install git" in machine.read("log")
    assert applied(machine) == ["nothing to do"]


def test_without_systemd_only_packages_are_looked_at(machine: FakeMachine) -> None:
    (machine.root / "machine/run/systemd/system").rmdir()
    assert applied(machine)[-1].startswith("1 of 4 steps")
    assert not [line for line in machine.read("log") if line.startswith("cloud-init")]


def test_a_first_boot_that_failed_in_part_is_told_and_gone_on_with(machine: FakeMachine) -> None:
    machine.put("boot-exit", "2")
    shown = applied(machine)
    assert "first boot: detail: runcmd failed" in shown
    assert shown[-1].startswith("4 of 4 steps")


def test_a_first_boot_without_end_is_an_error(machine: FakeMachine) -> None:
    machine.put("boot-exit", "124")  # as `timeout` ends
    with pytest.raises(StepFailed, match="cloud-init is still running after 600 s") as caught:
        applied(machine)
    assert caught.value.hint == "`cloud-init status --long` on the node shows what it does"


def test_a_mirror_that_fails_is_tried_again(machine: FakeMachine) -> None:
    machine.put("mirror-fails")
    applied(machine)
    assert machine.read("log").count("install git") == 2


def test_a_dpkg_that_was_cut_off_is_ended_first(machine: FakeMachine) -> None:
    machine.put("half", "linux-base")
    applied(machine)
    assert machine.read("installed") == ["linux-base", "git"]


def test_a_package_that_was_killed_while_it_was_unpacked_is_installed_again(
    machine: FakeMachine,
) -> None:
    """`apt-get --fix-broken install` passes over it, and its program is in PATH already."""
    applied(machine)
    machine.put("mess", "git")
    status = machine.root / "machine/var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text("Package: git\nStatus: install reinstreq half-installed\n")
    assert applied(machine)[0] == "packages"
    assert not (machine.state / "mess").exists()


def test_what_cannot_be_had_is_named(machine: FakeMachine) -> None:
    machine.put("archive")
    with pytest.raises(StepFailed, match="the node lacks git, and apt-get as root could not") as e:
        applied(machine)
    assert "through NAT" in (e.value.hint or "")
    assert machine.read("slept") == ["5", "20"]


def test_a_clock_that_nobody_sets_is_told_once_and_is_no_error(machine: FakeMachine) -> None:
    (machine.state / "has-ntp").unlink()
    assert any("is not synchronized after 60 s" in line for line in applied(machine))
    assert applied(machine) == ["nothing to do"]


def test_another_code_lacks_nothing_more(machine: FakeMachine) -> None:
    applied(machine)
    assert applied(machine, replace(WITH_GIT, code=Code(path="."))) == ["nothing to do"]


# ── room ─────────────────────────────────────────────────────────────────────

WITH_GPUS = replace(
    config(setup=Setup(tensorflow="2.21")),
    nodes={"chief": NodeGroup(accelerator=Accelerator(kind="T4"))},
)


def disk(machine: FakeMachine, size: int, free: int) -> None:
    """An own df, in GB."""
    head = "Filesystem 1024-blocks Used Available Capacity Mounted on"
    numbers = " ".join(str(n * 10**9 // 1024) for n in (size, size - free, free))
    tool = machine.root / "bin/df"
    tool.write_text(f"#!/bin/sh\necho '{head}'\necho '/dev/root {numbers} 50% /'\n")
    tool.chmod(0o755)
    (machine.root / "bin/dirname").symlink_to("/usr/bin/dirname")


def test_a_disk_without_room_for_cuda_is_told_before_anything_is_fetched(
    machine: FakeMachine,
) -> None:
    machine.put("synchronized")
    disk(machine, size=40, free=12)
    with pytest.raises(StepFailed) as caught:
        applied(machine, WITH_GPUS)
    assert "disk space: exit 1" in str(caught.value)
    assert "GB of " in str(caught.value)
    assert "TensorFlow with CUDA takes 15 GB" in str(caught.value)
    assert (caught.value.hint or "").startswith("set nodes.chief.disk_gb: 79 for new")


def test_an_environment_that_is_made_needs_no_more_room(machine: FakeMachine) -> None:
    machine.put("synchronized")
    disk(machine, size=40, free=3)
    folder = tensorflow.bin_folder(WITH_GPUS, node())
    assert folder is not None
    environment = machine.root / "homes" / node().name / folder.removesuffix("/bin")
    environment.mkdir(parents=True)
    (environment / ".complete").touch()
    applied(machine, WITH_GPUS)
    assert applied(machine, WITH_GPUS) == ["nothing to do"]


def test_a_disk_with_room_is_no_matter(machine: FakeMachine) -> None:
    machine.put("synchronized")
    disk(machine, size=100, free=16)
    applied(machine, WITH_GPUS)
    assert applied(machine, WITH_GPUS) == ["nothing to do"]


def test_nodes_without_gpus_or_without_an_environment_need_none() -> None:
    assert len(base.steps(config(setup=Setup(tensorflow="2.21")), node())) == 4
    assert len(base.steps(replace(WITH_GPUS, setup=Setup()), node())) == 4


def test_a_node_without_python_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    lacking = HereTransport(tmp_path / "nodes", {"PATH": str(folder)})
    with pytest.raises(StepFailed, match="sudo apt-get install python3"):
        apply(lambda _: base.python(), [node()], lacking, Remembered())
    apply(lambda _: base.python(), [node()], HereTransport(tmp_path / "nodes"), Remembered())
