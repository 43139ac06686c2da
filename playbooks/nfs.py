"""The `nfs` playbook: a folder of one node, served to the cluster's other nodes over NFSv4."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.core.shell import Step, script
from cloudtrain.playbooks import scripts

ROOT = ""
"""Prefix of every absolute path that is read or written on the node."""

OPTIONS = "hard,nosuid,nodev,actimeo=1,lookupcache=positive,retry=1"
"""Mount options, by nfs(5).

`hard`: a request waits for the server, as a `soft` one "can cause silent data corruption".
`actimeo`: attributes are cached for 1 s instead of 3 to 60, so that an evaluator that lists the
folder sees a new checkpoint soon; a file that is opened is always current (close-to-open).
`lookupcache=positive`: a file that was not there is looked for again. `retry`: minutes.
https://man7.org/linux/man-pages/man5/nfs.5.html (2026-11-27)"""

EXPORT = "rw,sync,no_subtree_check,all_squash"
"""Export options, by exports(5).

`sync`: what was written is on the server's disk. `all_squash`: whoever writes on a client, root
included, is the server's user, so that no numbers of users have to agree.
https://man7.org/linux/man-pages/man5/exports.5.html (2026-11-27)"""


def server_steps(folder: str, clients: Sequence[str]) -> tuple[Step, ...]:
    """Steps that create the folder and serve it to these addresses alone. Without clients nothing
    is installed."""
    create = Step(
        name="shared folder",
        run=script(scripts.DEBIAN + _CREATE, ROOT, folder),
        unless=script(_CREATED, ROOT, folder),
    )
    if not clients:
        return (create,)
    exports = (ROOT, folder, EXPORT, *clients)
    return (
        create,
        Step(
            name="NFS server",
            run=script(scripts.DEBIAN + _ONLY_4 + _INSTALL, ROOT, "exportfs", "nfs-kernel-server"),
            unless=script(_INSTALLED, ROOT, "exportfs"),
        ),
        Step(
            name="NFS export",
            run=script(scripts.DEBIAN + _EXPORTS + _EXPORT, *exports),
            unless=script(_EXPORTS + _EXPORTED, *exports),
        ),
    )


def client_steps(folder: str, server: str) -> tuple[Step, ...]:
    """Steps that mount the server's folder at the same path, anew if another one, or a stale one,
    is there."""
    place = (ROOT, folder, f"[{server}]" if ":" in server else server)
    return (
        Step(
            name="NFS client",
            run=script(scripts.DEBIAN + _NO_RPCBIND + _INSTALL, ROOT, "mount.nfs4", "nfs-common"),
            unless=script(_INSTALLED, ROOT, "mount.nfs4"),
        ),
        Step(
            name="shared folder",
            run=script(scripts.DEBIAN + _FOUND + _MOUNT, *place, OPTIONS),
            unless=script(_FOUND + _MOUNTED, *place),
            timeout=300.0,
        ),
    )


_INSTALLED = 'PATH="$PATH:/usr/sbin:/sbin"; command -v "$2"\n'

# NFSv4 needs no rpcbind, which would listen on every address: nfs.systemd(7), "Masking unwanted
# services". One that runs already is somebody's. Without it a server with NFSv3 does not start, and
# nfs-utils before 2.6 (Debian 11, Ubuntu 20.04) reads no nfs.conf.d, which turns that off.
_NO_RPCBIND = """\
set -eu
root=$1
reads_conf() (
    . "$root/etc/os-release"
    case $ID in
        debian) [ "${VERSION_ID:-99}" -ge 12 ];;
        ubuntu) [ "${VERSION_ID%%.*}" -ge 22 ];;
        *) false;;
    esac
)
if [ -d "$root/run/systemd/system" ] && reads_conf && ! systemctl is-active --quiet rpcbind.socket
then
    as_root systemctl mask rpcbind.service rpcbind.socket >/dev/null 2>&1 || true
fi
"""

# It is there before the server starts for the first time.
_ONLY_4 = (
    _NO_RPCBIND
    + """\
as_root mkdir -p "$root/etc/nfs.conf.d"
printf '[nfsd]\\nvers3=n\\n' | as_root tee "$root/etc/nfs.conf.d/cloudtrain.conf" >/dev/null
"""
)

_INSTALL = """\
debian_install "$3" && exit 0
echo "the node lacks $3, and apt-get as root could not install it" >&2
echo "hint: shared: use an image of Ubuntu or Debian that can reach its package mirror, or name" \\
    "a folder that the nodes share already in shared.path" >&2
exit 1
"""

_CREATED = 'test -d "$1$2" && test -w "$1$2"\n'
_CREATE = """\
set -eu
as_root mkdir -p "$(dirname "$1$2")"
as_root install -d -o "$(id -u)" -g "$(id -g)" -m 700 "$1$2"
"""

_EXPORTS = """\
root=$1 folder=$2 options=$3,anonuid=$(id -u),anongid=$(id -g)
shift 3
file=$root/etc/exports.d/cloudtrain.exports
exports() {
    printf '%s' "$folder"
    for client in "$@"; do printf ' %s(%s)' "$client" "$options"; done
    echo
}
"""
_EXPORTED = """\
[ "$(cat "$file" 2>/dev/null)" = "$(exports "$@")" ] || exit 1
grep -qs "^$folder[[:space:]]" "$root/var/lib/nfs/etab" || exit 1
[ ! -d "$root/run/systemd/system" ] || systemctl is-active --quiet nfs-server
"""
_EXPORT = """\
set -eu
PATH=$PATH:/usr/sbin:/sbin
as_root mkdir -p "$root/etc/exports.d"
exports "$@" | as_root tee "$file.new" >/dev/null
as_root mv "$file.new" "$file"
if [ -d "$root/run/systemd/system" ]; then
    as_root systemctl enable --now nfs-server >/dev/null 2>&1 || {
        echo "the NFS server does not start" >&2
        echo "hint: shared: \\`systemctl status nfs-server\\` on the node says why; its kernel" \\
            "may lack nfsd" >&2
        exit 1
    }
fi
as_root exportfs -ra
"""

_FOUND = """\
root=$1 folder=$2 source=$3:$2
mounted() {
    awk -v at="$folder" '$2 == at { from = $1 } END { print from }' "$root/proc/mounts"
}
answers() {  # a request to a server that is gone waits for ever, and can only be killed
    timeout -s KILL 20 ls "$folder" >/dev/null 2>&1 </dev/null
}
"""
_MOUNTED = '[ "$(mounted)" = "$source" ] && answers\n'
_MOUNT = """\
set -eu
PATH=$PATH:/usr/sbin:/sbin
for try in 1 2 3 4 5; do
    [ -n "$(mounted)" ] || break
    as_root umount -f -l "$folder" || true
done
as_root mkdir -p "$folder"
as_root timeout -s KILL 150 mount -t nfs4 -o "$4" "$source" "$folder" </dev/null &&
    answers && exit 0
echo "cannot mount $source" >&2
echo "hint: shared: the nodes need TCP port 2049 of each other: with firewall rules of your own" \\
    "(network.firewall), allow it between them" >&2
exit 1
"""
