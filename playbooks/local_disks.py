"""The local disks of a rented machine: found, formatted, mounted, and used for the node's cache.

They are fast, and empty after a stop, though not after a reboot: environments and data lie there,
which can be made again; run folders stay on the root disk.
"""

from __future__ import annotations

import re

from cloudtrain.core.cloud import cloud_of
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.shell import Step, script
from cloudtrain.playbooks import scripts


def steps(config: ClusterConfig, node: Node, root: str) -> tuple[Step, ...]:
    """A step for machines that may have a local disk; `root` is the prefix of absolute paths."""
    cloud = cloud_of(config.provider)
    machines = cloud.scratch_machines if cloud else ""
    if not machines or not re.fullmatch(machines, node.machine, re.IGNORECASE):
        return ()
    return (
        Step(
            name="local disk",
            run=script(scripts.DEBIAN + _DISKS + _CACHE, root, node.cache),
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
