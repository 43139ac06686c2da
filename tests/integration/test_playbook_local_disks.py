"""Local disks of rented machines: what is formatted, what never is, and where the cache lies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.playbooks import base
from cloudtrain.playbooks.apply import apply
from tests.support.fake_machine import FakeMachine, fake_machine
from tests.support.nodes_here import Remembered, node

TOOLS = {
    # Each disk is a file of `disks`: SIZE MODEL FSTYPE PTTYPE MOUNTPOINT CHILDREN, `-` for none
    "lsblk": """\
for last; do :; done
field() { /usr/bin/cut -d: -f"$2" "$STATE/disks/${1##*/}" | sed 's/^-$//'; }
case "$*" in
    "-bdnpro SIZE,NAME,TYPE")
        for each in "$STATE"/disks/*; do echo "$(field $each 1) /dev/${each##*/} disk"; done;;
    "-dno MODEL "*) field "$last" 2;;
    "-nro FSTYPE,PTTYPE,MOUNTPOINT "*)
        echo "$(field "$last" 3) $(field "$last" 4) $(field "$last" 5)";;
    "-nro NAME "*) echo "${last##*/}"; for each in $(field "$last" 6); do echo "$each"; done;;
    *) echo "lsblk $*" >>"$STATE/log"; exit 1;;
esac""",
    "blkid": """\
for last; do :; done
case $1 in
    -L) exec cat "$STATE/label" 2>/dev/null;;
    -p) [ -z "$(/usr/bin/cut -d: -f3,4 "$STATE/disks/${last##*/}" | sed 's/[-:]//g')" ] && exit 2
        exit 0;;
esac""",
    "mkfs.ext4": """\
for last; do :; done
echo "mkfs $last" >>"$STATE/log"
[ ! -e "$STATE/mkfs-fails" ] || exit 1
echo "$last" >"$STATE/label"
sed 's/:-:-:-:-/:ext4:-:-:-/' "$STATE/disks/${last##*/}" >"$STATE/new" 2>/dev/null &&
    mv "$STATE/new" "$STATE/disks/${last##*/}"
exit 0""",
    "mount": """\
echo "mount $*" >>"$STATE/log"
echo "$1 $2 ext4 rw 0 0" >>"$MACHINE/proc/mounts" """,
    "install": 'for last; do :; done; exec mkdir -p "$last"',
    "df": """\
echo "Filesystem 1024-blocks Used Available Capacity Mounted"
echo "/dev/x 0 0 $(cat "$STATE/free") 0% $2" """,
}
REAL = ("awk", "tr", "wc", "mkdir", "rmdir", "readlink", "dirname", "tee")
AWS, GCP, EBS = "Amazon EC2 NVMe Instance Storage", "nvme_card", "Amazon Elastic Block Store"
ROOT_DISK = f"100000000000:{EBS}:-:gpt:-:nvme0n1p1"
BLANK = f"600000000000:{AWS}:-:-:-:-"
CACHE = ".cache/cloudtrain"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    made = fake_machine(tmp_path, monkeypatch)
    for tool in REAL:
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    for tool, text in TOOLS.items():
        (tmp_path / "bin" / tool).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    for folder in ("state/disks", "machine/proc", "machine/dev/disk/by-id"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "machine/proc/mounts").write_text("/dev/root / ext4 rw 0 0\n")
    made.put("free", "500000000")
    disk(made, "nvme0n1", ROOT_DISK)
    return made


def disk(machine: FakeMachine, name: str, facts: str) -> None:
    (machine.state / "disks" / name).write_text(facts + "\n")


def own(machine: FakeMachine) -> Path:
    return machine.root / "machine/opt/cloudtrain/nvme"


def cache(machine: FakeMachine) -> Path:
    return machine.root / "homes" / node().name / CACHE


def steps_for(provider: str = "aws", machine: str = "g5.xlarge") -> tuple[object, ...]:
    config = ClusterConfig(name="m", provider=provider, strategy="mirrored", nodes={})
    return base.local_disk(config, replace(node(), machine=machine))


def applied(machine: FakeMachine) -> list[str]:
    stage = Remembered()
    config = ClusterConfig(name="m", provider="aws", strategy="mirrored", nodes={})
    there: Node = replace(node(), machine="g5.xlarge")
    steps = base.local_disk(config, there)
    apply(lambda _: steps, [there], machine.transport(), stage)
    return [text for _, text in [*stage.lines, *stage.ended]]


@pytest.mark.parametrize(
    ("provider", "machine", "count"),
    [
        ("aws", "g5.xlarge", 1),
        ("gcp", "a3-highgpu-8g", 1),
        ("azure", "Standard_NC4as_T4_v3", 1),
        ("aws", "m5.large", 0),
        ("gcp", "n1-standard-8", 0),
        ("hosts", "g5.xlarge", 0),
        ("local", "", 0),
    ],
)
def test_only_rented_machines_that_may_have_a_local_disk_are_looked_at(
    provider: str, machine: str, count: int
) -> None:
    assert len(steps_for(provider, machine)) == count


def test_a_blank_local_disk_is_formatted_and_holds_the_cache(machine: FakeMachine) -> None:
    disk(machine, "nvme1n1", BLANK)
    shown = applied(machine)
    assert "local disk: formatting /dev/nvme1n1" in shown
    log = machine.read("log")
    assert log == ["mkfs /dev/nvme1n1", f"mount /dev/nvme1n1 {own(machine)}"]
    assert cache(machine).readlink() == own(machine) / "cloudtrain/cache"
    (fstab,) = (machine.root / "machine/etc/fstab").read_text().splitlines()
    assert fstab == f"LABEL=cloudtrain-nvme {own(machine)} ext4 defaults,noatime,nofail 0 0"
    assert applied(machine) == ["nothing to do"]


@pytest.mark.parametrize(
    "facts",
    [
        f"600000000000:{AWS}:ext4:-:-:-",
        f"600000000000:{AWS}:-:gpt:-:-",
        f"600000000000:{AWS}:-:-:/data:-",
        f"600000000000:{AWS}:-:-:-:nvme1n1p1",
        f"600000000000:{AWS}:LVM2_member:-:-:vg-lv",
        f"600000000000:{EBS}:-:-:-:-",
        "600000000000:Virtual_Disk:-:-:-:-",
    ],
)
def test_a_disk_in_use_or_of_another_kind_is_never_formatted(
    machine: FakeMachine, facts: str
) -> None:
    disk(machine, "nvme1n1", facts)
    applied(machine)
    assert machine.read("log") == []
    assert not cache(machine).exists()
    assert applied(machine) == ["nothing to do"]


def test_what_only_a_probe_of_the_disk_itself_finds_holds(machine: FakeMachine) -> None:
    """udev may not have looked yet: then lsblk shows a full disk as an empty one."""
    disk(machine, "nvme1n1", BLANK)
    (machine.root / "bin/blkid").write_text("#!/bin/sh\n[ $1 = -p ] && exit 0\nexit 2\n")
    applied(machine)
    assert machine.read("log") == []


def test_googles_local_ssds_are_known_by_their_links(machine: FakeMachine) -> None:
    disk(machine, "nvme1n1", f"400000000000:{GCP}:-:-:-:-")
    disk(machine, "nvme2n1", f"900000000000:{GCP}-pd:-:-:-:-")
    links = machine.root / "machine/dev/disk/by-id"
    (links / "google-local-nvme-ssd-0").symlink_to("/dev/nvme1n1")
    (links / "google-persistent-disk-1").symlink_to("/dev/nvme2n1")
    applied(machine)
    assert machine.read("log")[0] == "mkfs /dev/nvme1n1"
    assert cache(machine).is_symlink()


def test_several_disks_become_one_if_mdadm_is_there(machine: FakeMachine) -> None:
    for name in ("nvme1n1", "nvme2n1"):
        disk(machine, name, BLANK)
    tool = machine.root / "bin/mdadm"
    tool.write_text('#!/bin/sh\necho "mdadm $*" >>"$STATE/log"\nmkdir -p "${2%/*}"; : >"$2"\n')
    tool.chmod(0o755)
    applied(machine)
    made, formatted, _ = machine.read("log")
    array = machine.root / "machine/dev/md/cloudtrain"
    assert made.startswith(f"mdadm --create {array} --run --quiet --level=0 --raid-devices=2 /dev/")
    assert formatted == f"mkfs {array}"


def test_without_mdadm_the_largest_disk_is_taken(machine: FakeMachine) -> None:
    disk(machine, "nvme1n1", BLANK)
    disk(machine, "nvme2n1", BLANK.replace("600", "900"))
    applied(machine)
    assert machine.read("log")[0] == "mkfs /dev/nvme2n1"


def test_images_that_mount_their_disks_are_left_to_it(machine: FakeMachine) -> None:
    place = machine.root / "machine/opt/dlami/nvme"
    place.mkdir(parents=True)
    disk(machine, "nvme1n1", BLANK)
    with (machine.root / "machine/proc/mounts").open("a") as mounts:
        mounts.write(f"/dev/mapper/vg.01-lv_ephemeral {place} ext4 rw 0 0\n")
    applied(machine)
    assert machine.read("log") == []
    assert cache(machine).readlink() == place / "cloudtrain/cache"


def test_a_network_file_system_is_no_local_disk(machine: FakeMachine) -> None:
    (machine.root / "machine/mnt").mkdir()
    with (machine.root / "machine/proc/mounts").open("a") as mounts:
        mounts.write(f"10.0.0.9:/export {machine.root}/machine/mnt nfs rw 0 0\n")
    applied(machine)
    assert not cache(machine).exists()


def test_a_small_local_disk_does_not_get_the_cache(machine: FakeMachine) -> None:
    disk(machine, "nvme1n1", BLANK)
    machine.put("free", "20000000")
    applied(machine)
    assert not cache(machine).exists()


def test_a_cache_that_holds_something_stays_where_it_is(machine: FakeMachine) -> None:
    disk(machine, "nvme1n1", BLANK)
    (cache(machine) / "venvs").mkdir(parents=True)
    applied(machine)
    assert not cache(machine).is_symlink()


def test_a_disk_that_cannot_be_formatted_is_no_error(machine: FakeMachine) -> None:
    disk(machine, "nvme1n1", BLANK)
    machine.put("mkfs-fails")
    applied(machine)
    assert not cache(machine).exists()
    assert applied(machine) == ["nothing to do"]


def stopped_and_started(machine: FakeMachine) -> None:
    """The disk is another one, empty; the root disk is as it was."""
    (machine.state / "label").unlink()
    (machine.root / "machine/proc/mounts").write_text("/dev/root / ext4 rw 0 0\n")
    for each in sorted(own(machine).rglob("*"), reverse=True):
        each.rmdir()
    (cache(machine).parents[1] / ".cloudtrain/.local-disk").write_text("an earlier boot\n")
    machine.put("log")


def test_after_a_stop_the_empty_disk_is_made_ready_again(machine: FakeMachine) -> None:
    disk(machine, "nvme1n1", BLANK)
    applied(machine)
    stopped_and_started(machine)
    disk(machine, "nvme1n1", BLANK)
    applied(machine)
    assert machine.read("log")[0] == "mkfs /dev/nvme1n1"
    assert cache(machine).is_dir()
    assert len((machine.root / "machine/etc/fstab").read_text().splitlines()) == 1


def test_a_cache_whose_disk_is_gone_for_good_moves_back(machine: FakeMachine) -> None:
    disk(machine, "nvme1n1", BLANK)
    applied(machine)
    stopped_and_started(machine)
    (machine.state / "disks/nvme1n1").unlink()
    applied(machine)
    assert not cache(machine).is_symlink()


def test_after_a_reboot_the_disk_is_mounted_and_not_formatted(machine: FakeMachine) -> None:
    disk(machine, "nvme1n1", BLANK)
    applied(machine)
    (machine.root / "machine/proc/mounts").write_text("/dev/root / ext4 rw 0 0\n")
    (cache(machine).parents[1] / ".cloudtrain/.local-disk").write_text("an earlier boot\n")
    machine.put("log")
    applied(machine)
    assert machine.read("log") == [f"mount /dev/nvme1n1 {own(machine)}"]
