"""The `base` playbook: waits for a machine's boot and installs what the others need."""

from __future__ import annotations

import re

from cloudtrain.core.cloud import cloud_of, is_cloud
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.shell import Step, script
from cloudtrain.core.ship import check_python
from cloudtrain.playbooks import nvidia, scripts, tensorflow

ROOT = ""
"""Prefix of every absolute path that is read on the node."""


def steps(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """Steps for rented machines; none for others, which are their owners' responsibility."""
    if not is_cloud(config.provider):
        return ()
    needed, look = packages(config), _WHOLE + scripts.MISSING
    return (
        Step(
            name="first boot",
            run=script(_BOOT, ROOT),
            unless=script(_BOOTED, ROOT),
            timeout=_BOOT_SECONDS + 60.0,
        ),
        Step(
            name="no automatic upgrades",
            run=script(scripts.DEBIAN + _NO_UPGRADES, *_UNITS),
            unless=script(_NO_UPGRADES_THERE, ROOT, *_UNITS),
        ),
        Step(
            name="packages",
            run=script(scripts.DEBIAN + look + _REPAIR + scripts.INSTALL_MISSING, ROOT, *needed),
            unless=script(look + _PACKAGES_THERE, ROOT, *needed),
        ),
        Step(
            name="clock",
            run=script(scripts.DEBIAN + _CLOCK, ROOT),
            unless=script(_CLOCK_THERE, ROOT),
        ),
        *local_disk(config, node),
        *_room(config, node),
    )


def python() -> tuple[Step, ...]:
    """Check that the node has a Python for our own code there (node/). `steps` installs it on the
    clouds' machines; elsewhere the error says what to install."""
    return (Step(name="python3", run=check_python(), unless=check_python()),)


ROOM_GB = 15
"""GB for an environment with CUDA: 7, 3 of downloads meanwhile, and what training writes.
Sizes of TensorFlow 2.21, 2026-11-22."""


def _room(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """Check disk space first, rather than fail after minutes with "No space left on device"."""
    gpus = nvidia.wanted(config, node)
    folder = tensorflow.bin_folder(config, node) if gpus else None
    if folder is None:
        return ()
    arguments = (folder.removesuffix("/bin"), str(ROOM_GB))
    return (
        Step(
            name="disk space",
            run=script(_FREE + _ROOM, *arguments, node.role),
            unless=script(_FREE + _ROOM_THERE, *arguments),
        ),
    )


def packages(config: ClusterConfig) -> tuple[str, ...]:
    """Debian packages that the other playbooks, the preflight and the upload run on a node."""
    named = ["ca-certificates", "python3", "tar", "procps"]
    if config.code.git is not None:
        named.append("git")
    setup = config.setup
    if setup.tensorflow or setup.packages or setup.requirements or setup.install:
        named.append("python3-venv")  # also installs uv, which provides other Pythons
    return tuple(named)


_BOOT_SECONDS = 600

# Without systemd (a container) cloud-init reports no status; the first login has waited for it.
_BOOTED = """\
[ ! -d "$1/run/systemd/system" ] || ! command -v cloud-init >/dev/null ||
    [ -e "$1/run/cloud-init/result.json" ] || [ -e "$1/run/cloud-init/disabled" ]
"""
# Exit 1 and 2 (recoverable) mean errors in what the image or the user data asked for.
_BOOT = f"""\
code=0
timeout {_BOOT_SECONDS} cloud-init status --wait >/dev/null 2>&1 </dev/null || code=$?
if [ "$code" = 124 ]; then
    echo "cloud-init is still running after {_BOOT_SECONDS} s" >&2
    echo "hint: \\`cloud-init status --long\\` on the node shows what it does" >&2
    exit 1
fi
[ "$code" = 0 ] || cloud-init status --long </dev/null 2>&1 || true
"""

# They hold dpkg's lock, and upgrade the kernel under the GPU's driver. The user data stops them
# too, on images that honour it.
_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "apt-daily.service",
    "apt-daily-upgrade.service",
    "unattended-upgrades.service",
)
_NO_UPGRADES_THERE = """\
[ -d "$1/run/systemd/system" ] || exit 0
shift
! systemctl is-enabled "$@" 2>/dev/null | grep -qvE '^(masked|masked-runtime|not-found)$'
"""
_NO_UPGRADES = """\
set -eu
as_root systemctl stop "$@" >/dev/null 2>&1 || true
as_root systemctl mask "$@"
"""

_WHOLE = """\
root=$1
shift
whole() {  # no leftovers of a killed dpkg
    ! grep -qsE '^Status: .*(reinstreq|half-|unpacked)' "$root/var/lib/dpkg/status" || return 1
    for change in "$root"/var/lib/dpkg/updates/[0-9]*; do
        [ ! -e "$change" ] || return 1
    done
}
"""
_PACKAGES_THERE = 'whole && [ -z "$(missing "$@")" ]\n'
_REPAIR = """\
set -eu
whole || debian_repair || true
"""

# An unsynchronized clock is only reported, once per boot: the preflight compares the clocks.
_CLOCK_THERE = """\
[ ! -d "$1/run/systemd/system" ] || [ -e "$1/run/cloudtrain-clock" ] ||
    [ "$(timedatectl show --property NTPSynchronized --value)" = yes ]
"""
_CLOCK = """\
set -eu
as_root timedatectl set-ntp true 2>&1 || true
left=60
while [ "$(timedatectl show --property NTPSynchronized --value 2>/dev/null)" != yes ]; do
    [ "$left" -gt 0 ] || {
        echo "the clock ($(date -u)) is not synchronized after 60 s: does the network allow NTP?"
        as_root touch "$1/run/cloudtrain-clock"
        exit 0
    }
    sleep 2
    left=$((left - 2))
done
"""

# On the file system of the environment; an existing environment has its space.
_FREE = """\
folder=$1 needed=$2
place=$folder
until [ -d "$place" ]; do place=$(dirname "$place"); done
gb() {
    echo "$(($1 * 1024 / 1000000000))"
}
disk() {  # its size and what is free, in KiB
    df -Pk "$place" </dev/null | {
        read -r head
        read -r name size used free rest
        echo "$size $free"
    }
}
"""
_ROOM_THERE = """\
[ ! -e "$folder/.complete" ] || exit 0
both=$(disk) && [ "$(gb "${both#* }")" -ge "$needed" ]
"""
_ROOM = """\
both=$(disk)
[ "$(gb "${both#* }")" -lt "$needed" ] || exit 0  # meanwhile the cache is on a local disk
size=${both% *} free=${both#* }
echo "$(gb "$free") GB of $(gb "$size") GB are free on the disk, but installing TensorFlow with" \
    "CUDA takes $needed GB" >&2
echo "hint: set nodes.$3.disk_gb: $(gb "$((size - free + 50000000))") for new nodes; on these," \
    "delete what is not needed in $(dirname "$folder")" >&2
exit 1
"""


# The local disks of a rented machine: found, formatted, mounted, and used for the node's cache.
# They are fast, and empty after a stop, though not after a reboot: environments and data lie there,
# which can be made again; run folders stay on the root disk.


def local_disk(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """A step for machines that may have a local disk."""
    cloud = cloud_of(config.provider)
    machines = cloud.scratch_machines if cloud else ""
    if not machines or not re.fullmatch(machines, node.machine, re.IGNORECASE):
        return ()
    return (
        Step(
            name="local disk",
            run=script(scripts.DEBIAN + _DISKS + _CACHE, ROOT, node.cache),
            unless=script(_LOOKED, node.cache),
        ),
    )


# Once per boot: what cannot be mounted now is not tried again before each run.
_LOOKED = """\
read -r boot </proc/sys/kernel/random/boot_id
[ "$(cat .cloudtrain/.local-disk 2>/dev/null)" = "$boot" ] || exit 1
[ ! -L "$1" ] || [ -d "$1" ]
"""

# The instance store of AWS by its model, Google's local SSDs by udev's links, Azure's local NVMe by
# its model (from memory; not tried). AWS's deep learning images have a service for theirs.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ssd-instance-store.html
# https://cloud.google.com/compute/docs/disks/add-local-ssd#formatandmount
_DISKS = """\
set -u
root=$1 cache=$2 own=$1/opt/cloudtrain/nvme label=cloudtrain-nvme
is_mounted() {
    awk -v at="$1" '$2 == at && $1 ~ "^/dev/" { found = 1 } END { exit !found }' "$root/proc/mounts"
}
is_local() {
    case $1 in */md*) return 0;; esac  # ours, as its label says
    case $(lsblk -dno MODEL "$1" 2>/dev/null) in
        "Amazon EC2 NVMe Instance Storage"* | "Microsoft NVMe Direct Disk"*) return 0;;
    esac
    for link in "$root"/dev/disk/by-id/google-local-*ssd-*; do
        [ "$(readlink -f "$link")" != "$1" ] || return 0
    done
    return 1
}
is_blank() {  # no file system, no partition table, not part of anything, not in use
    [ -z "$(lsblk -nro FSTYPE,PTTYPE,MOUNTPOINT "$1" | tr -d '[:space:]')" ] || return 1
    [ "$(lsblk -nro NAME "$1" | wc -l)" -eq 1 ] || return 1
    code=0
    as_root blkid -p "$1" >/dev/null 2>&1 || code=$?
    [ "$code" = 2 ]
}
unused() {  # the largest first
    lsblk -bdnpro SIZE,NAME,TYPE 2>/dev/null | sort -rn | while read -r size name type; do
        ! { [ "$type" = disk ] && is_local "$name" && is_blank "$name"; } || echo "$name"
    done
}
one_of() {  # sets disk: an array of all, else the first
    array=$root/dev/md/cloudtrain disk=${1-}
    [ ! -e "$array" ] || { disk=$array; is_blank "$disk"; return; }
    [ $# -gt 1 ] && command -v mdadm >/dev/null || return 0
    ! as_root mdadm --create "$array" --run --quiet --level=0 --raid-devices=$# "$@" </dev/null ||
        disk=$array
}
mount_own() {
    ! is_mounted "$own" || return 0
    [ ! -d "$root/opt/dlami" ] || return 1
    disk=$(as_root blkid -L "$label" 2>/dev/null)
    if [ -z "$disk" ] || ! is_local "$disk"; then
        one_of $(unused) && [ -n "$disk" ] || return 1
        echo "formatting $disk"
        as_root mkfs.ext4 -q -m 0 -L "$label" "$disk" </dev/null || return 1
    fi
    as_root mkdir -p "$own"
    grep -qs "^LABEL=$label " "$root/etc/fstab" ||
        echo "LABEL=$label $own ext4 defaults,noatime,nofail 0 0" |
        as_root tee -a "$root/etc/fstab" >/dev/null
    as_root mount "$disk" "$own"
}
"""

# The cache moves only before anything is in it.
_CACHE = """\
folder_on() {
    as_root install -d -o "$(id -u)" -g "$(id -g)" -m 755 "$1/cloudtrain" &&
        mkdir -p "$1/cloudtrain/cache"
}
mount_own || true
if [ -L "$cache" ] && [ ! -d "$cache" ]; then
    place=$(readlink "$cache")
    place=${place%/cloudtrain/cache}
    { is_mounted "$place" && folder_on "$place"; } || rm "$cache"
fi
if [ ! -L "$cache" ] && { [ ! -e "$cache" ] || rmdir "$cache" 2>/dev/null; }; then
    for place in "$own" "$root/opt/dlami/nvme" "$root/mnt"; do
        is_mounted "$place" || continue
        free=$(df -Pk "$place" </dev/null | awk 'NR == 2 { print $4 }')
        [ "${free:-0}" -ge 30000000 ] && folder_on "$place" || continue
        mkdir -p "$(dirname "$cache")"
        ln -s "$place/cloudtrain/cache" "$cache"
        echo "environments and data on $place"
        break
    done
fi
read -r boot </proc/sys/kernel/random/boot_id
mkdir -p .cloudtrain
echo "$boot" >.cloudtrain/.local-disk.new
mv .cloudtrain/.local-disk.new .cloudtrain/.local-disk
"""
