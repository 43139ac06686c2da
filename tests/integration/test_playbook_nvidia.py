"""The nvidia playbook run on a machine of scripts: installed, held, loaded, left alone."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import ClusterConfig, Setup
from cloudtrain.playbooks import nvidia
from tests.support.fake_machine import FakeMachine
from tests.support.nodes_here import node
from tests.support.nvidia_parts import EXACT, OPEN, config, machine

__all__ = ["machine"]

META = "linux-modules-nvidia-580-server-open-gcp"


def applied(machine: FakeMachine, wanted: ClusterConfig | None = None) -> list[str]:
    return machine.apply(nvidia.steps(wanted or config(), node()))


def installs(machine: FakeMachine) -> list[str]:
    return [line for line in machine.read("log") if line.startswith("install")]


# ── as values ────────────────────────────────────────────────────────────────


def test_gpus_get_their_driver_whoever_brings_what_uses_them(machine: FakeMachine) -> None:
    without = replace(config(), setup=Setup(packages=("torch",)))
    driver, _ = nvidia.steps(without, node())
    assert driver.unless
    assert driver.unless.arguments[-1] == "0", "no driver is too old"
    assert applied(machine, without)[-1].startswith("2 of 2 steps")
    assert installs(machine) == [f"install {EXACT} {' '.join(OPEN)}"]
    assert applied(machine, without) == ["nothing to do"]


def test_the_look_for_googles_own_installer_does_not_find_itself(machine: FakeMachine) -> None:
    """pgrep(1) with -f reads whole command lines: that of this script has its text."""
    driver, *_ = nvidia.steps(config(), node())
    assert "deeplearning" in driver.run.shell()
    assert "/opt/deeplearning/install-driver.sh" not in driver.run.shell()


# ── on a machine ─────────────────────────────────────────────────────────────


def test_the_driver_is_installed_held_and_loaded_without_a_reboot(machine: FakeMachine) -> None:
    shown = applied(machine)
    assert shown[0] == "NVIDIA driver"
    assert shown[-1].startswith("2 of 2 steps")
    assert installs(machine) == [f"install {EXACT} {' '.join(OPEN)}"]
    assert machine.read("held") == [EXACT, *OPEN]
    assert "systemctl reboot" not in machine.read("log")
    assert machine.read("log")[-3:] == ["hold", "modprobe nvidia", "modprobe nvidia_uvm"]
    assert (machine.state / "persistent").exists()


def test_a_second_time_nothing_is_done(machine: FakeMachine) -> None:
    applied(machine)
    before = machine.read("log")
    assert applied(machine) == ["nothing to do"]
    assert machine.read("log") == before


def test_an_image_that_has_the_driver_needs_nothing(machine: FakeMachine) -> None:
    for name in ("loaded", "persistent"):
        machine.put(name)
    machine.put("driver", "550.54.15")
    assert applied(machine) == ["nothing to do"]


def test_a_kernel_that_the_archive_left_behind_is_exchanged_by_a_reboot(
    machine: FakeMachine,
) -> None:
    newer = EXACT.replace("1015", "1018")
    machine.put("archive", META, *OPEN)
    machine.put(f"brings-{META}", f"echo {newer} >>$STATE/installed")
    machine.put("next-kernel", "6.8.0-1018-gcp")
    shown = applied(machine)
    assert installs(machine) == [f"install {META} {' '.join(OPEN)}"], "no second time after it"
    assert machine.read("log").count("systemctl reboot") == 1
    assert "rebooting: connection refused" in shown
    assert shown[-1].startswith("2 of 2 steps")


def test_what_a_reboot_does_not_mend_is_told_with_the_drivers_own_words(
    machine: FakeMachine,
) -> None:
    machine.put("archive", META, *OPEN)
    with pytest.raises(StepFailed, match="NVIDIA driver: command succeeded, but") as caught:
        applied(machine)
    assert "NVIDIA-SMI has failed" in str(caught.value)
    assert machine.read("log").count("systemctl reboot") == 1


def test_no_node_is_rebooted_under_a_training_task(machine: FakeMachine) -> None:
    machine.put("archive", META, *OPEN)
    machine.put("training")
    with pytest.raises(StepFailed, match="it needs a reboot: a training task is running"):
        applied(machine)
    assert "systemctl reboot" not in machine.read("log")


def test_pascal_and_volta_get_the_proprietary_modules(machine: FakeMachine) -> None:
    packages = [name.replace("-open", "") for name in (EXACT, *OPEN)]
    machine.put("archive", EXACT, *OPEN, *packages)
    applied(machine, config("V100"))
    assert installs(machine) == [f"install {' '.join(packages)}"]


def test_nvswitch_brings_the_fabric_manager(machine: FakeMachine) -> None:
    machine.device("0000:00:05.0", "0x068000")
    machine.put("archive", EXACT, *OPEN, "nvidia-fabricmanager-580")
    applied(machine)
    assert installs(machine)[0].endswith(" nvidia-fabricmanager-580")
    assert "systemctl enable --now nvidia-fabricmanager" in machine.read("log")
    (machine.state / "fabric").unlink()
    assert applied(machine)[0] == "NVIDIA driver", "one that ended is started again"


FABRIC = "nvidia-fabricmanager-580"


def test_modules_that_do_not_fit_the_fabric_manager_are_passed_over_for_those_that_do(
    machine: FakeMachine,
) -> None:
    machine.device("0000:00:05.0", "0x068000")
    newer = EXACT.replace("1015", "1018")
    machine.put("archive", EXACT, META, *OPEN, FABRIC)
    machine.put("misfits", f"{EXACT} {FABRIC}")
    machine.put(f"brings-{META}", f"echo {newer} >>$STATE/installed")
    machine.put("next-kernel", "6.8.0-1018-gcp")
    assert applied(machine)[-1].startswith("2 of 2 steps")
    assert installs(machine) == [f"install {META} {' '.join(OPEN)} {FABRIC}"]


def test_nothing_is_changed_where_no_modules_fit_and_apts_own_words_are_shown(
    machine: FakeMachine,
) -> None:
    machine.device("0000:00:05.0", "0x068000")
    machine.put("archive", EXACT, *OPEN, FABRIC)
    machine.put("misfits", f"{OPEN[1]} {FABRIC}")
    with pytest.raises(StepFailed, match="Depends: another version of") as caught:
        applied(machine)
    assert "with the fabric manager that its NVSwitches need" in str(caught.value)
    assert installs(machine) == []
    assert machine.read("held") == []


def test_a_driver_of_ubuntus_without_its_fabric_manager_gets_it(machine: FakeMachine) -> None:
    machine.device("0000:00:05.0", "0x068000")
    machine.put("loaded")
    machine.put("installed", EXACT, *OPEN)
    machine.put("archive", EXACT, *OPEN, FABRIC)
    machine.put("fabric-missing")
    assert applied(machine)[-1].startswith("2 of 2 steps")
    assert installs(machine) == [f"install {EXACT} {' '.join(OPEN)} {FABRIC}"]


def test_secure_boot_that_refuses_the_modules_is_told_as_such(machine: FakeMachine) -> None:
    machine.put("installed", EXACT, *OPEN)
    machine.put(
        "rejected", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
    )
    machine.put("secure-boot", "SecureBoot enabled")
    with pytest.raises(StepFailed) as caught:
        applied(machine)
    assert "SecureBoot enabled (Key was rejected by service)" in str(caught.value)
    assert "without Secure Boot" in (caught.value.hint or "")
    assert "systemctl reboot" not in machine.read("log")


def test_a_machine_that_the_table_lacks_is_not_made_ready_as_a_cpu_node_with_its_gpus(
    machine: FakeMachine,
) -> None:
    unknown = config(kind=None, provider="aws", machine="z9.giant")
    with pytest.raises(StepFailed, match=r"z9\.giant has 1 NVIDIA GPUs, but the config has none"):
        applied(machine, unknown)
    for device in (machine.root / "machine/sys/bus/pci/devices").glob("*:04.0/vendor"):
        device.write_text("0x1d0f\n")
    assert applied(machine, unknown) == ["nothing to do"]
    assert nvidia.steps(config(kind=None, provider="aws", machine="m6i.xlarge"), node()) == ()


def test_a_step_killed_while_apt_installs_is_repaired(machine: FakeMachine) -> None:
    for at in (EXACT, *OPEN):
        machine.put("installed")
        machine.put("log")
        machine.put(f"killed-at-{at}")
        (machine.state / "loaded").unlink(missing_ok=True)
        driver, _ = nvidia.steps(config(), node())
        assert machine.transport().run(node(), driver.run).exit_code == -signal.SIGKILL
        assert machine.read("half")
        applied(machine)
        assert machine.read("half") == []
        assert set(machine.read("installed")) == {EXACT, *OPEN}


def test_a_mirror_that_fails_is_tried_again(machine: FakeMachine) -> None:
    machine.put("mirror-fails")
    applied(machine)
    assert len(installs(machine)) == 2


LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1576 (apt-get)"


def test_another_apts_lock_of_the_lists_is_waited_for(machine: FakeMachine) -> None:
    machine.put("update-fails", LOCKED, LOCKED)
    assert applied(machine)[-1].startswith("2 of 2 steps")
    assert machine.read("slept") == ["5", "10"]


def test_lists_that_cannot_be_updated_are_not_told_as_missing_modules(machine: FakeMachine) -> None:
    machine.put("archive")
    machine.put("update-fails", *["E: The repository 'http://a noble Release' is not signed."] * 9)
    with pytest.raises(StepFailed, match=r"apt-get update failed: E: The repository") as caught:
        applied(machine)
    assert "no modules" not in str(caught.value)
    assert machine.read("slept") == []


def test_gpus_that_join_their_fabric_are_waited_for(machine: FakeMachine) -> None:
    for name in ("loaded", "persistent"):
        machine.put(name)
    machine.put("in-progress", *["x"] * 4)
    assert applied(machine)[-1].startswith("1 of 2 steps")
    assert set(machine.read("slept")) == {"5"}


def test_gpus_that_never_join_their_fabric_are_refused(machine: FakeMachine) -> None:
    for name in ("loaded", "persistent"):
        machine.put(name)
    machine.put("in-progress", *["x"] * 99)
    with pytest.raises(StepFailed, match=r"fabric\.state is In Progress") as caught:
        applied(machine)
    assert "nvlsm" in (caught.value.hint or "")
    assert installs(machine) == []


def test_an_image_whose_driver_is_too_old_and_not_ubuntus_is_refused(machine: FakeMachine) -> None:
    machine.put("loaded")
    machine.put("driver", "470.82.01")
    with pytest.raises(StepFailed, match="the driver 470") as caught:
        applied(machine)
    assert caught.value.hint == "use image: auto, or an older setup.tensorflow"
    assert installs(machine) == []


def test_ubuntus_older_driver_is_exchanged(machine: FakeMachine) -> None:
    machine.put("loaded")
    machine.put("installed", "nvidia-utils-470-server")
    machine.put("driver", "470.82.01")
    machine.put("next-kernel", "6.8.0-1015-gcp")
    machine.put(f"brings-{EXACT}", "echo 580.178.04 >$STATE/driver")
    assert applied(machine)[-1].startswith("2 of 2")
    assert installs(machine) == [f"install {EXACT} {' '.join(OPEN)}"]


def test_a_machine_without_its_gpus_is_told_before_anything_is_installed(
    machine: FakeMachine,
) -> None:
    with pytest.raises(StepFailed, match="has 1 NVIDIA GPUs on its PCI bus, not T4:4"):
        applied(machine, config(count=4))
    assert installs(machine) == []


def test_shared_gpus_of_azure_are_refused_clearly(machine: FakeMachine) -> None:
    with pytest.raises(StepFailed, match="need NVIDIA's GRID driver"):
        applied(machine, config("A10", provider="azure"))
    assert installs(machine) == []


def test_debian_without_a_driver_is_refused_clearly(machine: FakeMachine) -> None:
    (machine.root / "machine/etc/os-release").write_text("ID=debian\n")
    with pytest.raises(StepFailed, match="installs it only on Ubuntu"):
        applied(machine)


def test_googles_image_is_let_install_its_own_driver(machine: FakeMachine) -> None:
    own = machine.root / "machine/opt/deeplearning/install-driver.sh"
    own.parent.mkdir(parents=True)
    own.write_text('#!/bin/sh\ntouch "$STATE/loaded"\n')
    own.chmod(0o755)
    applied(machine)
    assert installs(machine) == []
