"""Scripts that `provider: hosts` runs on machines; in sh, the cluster is `$1`."""

from __future__ import annotations

from cloudtrain.core import ship


def editing(script: str) -> str:
    """A script that edits files of the user's, with the functions that do it."""
    return f"{ship.text('user_file.sh')}\n{script}"


ENROLL = r"""
set -eu
umask 077
place="$HOME/.cloudtrain/$1"
mkdir -p "$HOME/.ssh" "$place/nodes" || mkdir -p "$place/nodes" # another cluster's went meanwhile
add_line "$HOME/.ssh/authorized_keys" "$3"
[ -e "$place/owner" ] || printf '%s\n' "$4" >"$place/owner"
[ -L "$place/home" ] || ln -sn "$5" "$place/home" 2>/dev/null || [ -L "$place/home" ]
: >"$place/nodes/$2"
"""
"""`$2`: node. `$3`: line of our key. `$4`: owner, as JSON. `$5`: name for this home, of which the
first one stays. The node's file is written last: it marks the machine as enrolled."""

IS_ENROLLED = r"""
place="$HOME/.cloudtrain/$1"
if [ -e "$place/nodes/$2" ]; then
    echo "yes $(readlink "$place/home")"
    head -c 4096 "$place/owner" 2>/dev/null || true
else
    echo no
fi
"""
"""The home's name and, in the second line, the owner, as `ENROLL` wrote them; earlier versions
wrote none."""

HOLDS = r"""
if [ -e "$HOME/.cloudtrain/$1" ] || grep -qs -- " cloudtrain:$1\$" "$HOME/.ssh/authorized_keys"
then echo yes; else echo no; fi
"""

CLUSTERS = r"""
for place in "$HOME"/.cloudtrain/*/nodes; do
    [ -d "$place" ] || continue
    place=${place%/nodes}
    printf '%s\n' "${place##*/}"
done
"""

FACTS = r"""
printf '%s, ' "$(uname -sm)"
printf '%s, ' "$(python3 --version)"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c |
    sed 's/, \([0-9.]*\)$/ driver \1,/' || true
df -Pk "$HOME" | awk 'NR == 2 && $4 ~ /^[0-9]+$/ {printf "%d GB free", $4 / 1000000}'
"""

UNKNOWN_NAMES = """
import socket, sys
for name in sys.argv[1:]:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        print(name)
"""
"""For Python: those of the names in its arguments that cannot be resolved there."""

HOME_NUMBER = 'stat -L -c %i "$HOME"'
"""The same on all machines if the home is on a network; by chance, too, as of cloned disks."""

MARK_HOME = 'mktemp "$HOME/.cloudtrain-XXXXXXXX"'
IS_MARKED = """[ ! -e "$HOME/${1##*/}" ] || echo yes"""
UNMARK_HOME = 'rm -f -- "$1"'
"""`$1`: what `MARK_HOME` answered."""

END_TASKS = r"""
place="$HOME/.cloudtrain/$1" tag="CLOUDTRAIN_SETUP=$1/"
ours() {
    for its in $(grep -lsz "^$tag" /proc/[0-9]*/environ); do
        grep -qsxzF "HOME=$HOME" "$its" && echo "$its" | cut -d/ -f3
    done
    for process in /proc/[0-9]*; do
        case "$(readlink "$process/cwd" 2>/dev/null)" in
            "$place" | "$place"/*) echo "${process#/proc/}" ;;
        esac
    done
}
cd /
for signal in TERM KILL KILL; do
    found=$(ours)
    [ -n "$found" ] || break
    kill -s $signal $found 2>/dev/null || true
    sleep 1
done
readlink "$place/home" || true
"""
"""Ends what works in the cluster's folder, or was started by `setup.run` in this home: another
account's cluster may have the same name, and root sees its processes. Answers with the name of the
home."""

CLEAR = r"""
set -eu
cd /
rm -rf -- "$HOME/.cloudtrain/$1"
rmdir "$HOME/.cloudtrain" 2>/dev/null || true
remove_lines "$HOME/.ssh/authorized_keys" "$2"
"""
"""`$2`: label of our key. The key is removed last, as it gives us access."""

REMOVE = r"""
set -eu
place="$HOME/.cloudtrain/$1"
rm -f -- "$place/nodes/$2"
if rmdir "$place/nodes" 2>/dev/null; then
    [ -z "$4" ] || rm -rf -- "$place"
    rm -f -- "$place/owner" "$place/home"
    rmdir "$place" "$HOME/.cloudtrain" 2>/dev/null || true
    remove_lines "$HOME/.ssh/authorized_keys" "$3"
fi
"""
"""`$2`: node. `$3`: label of our key, which stays while the home has another node. `$4`: not empty
to delete whatever the cluster has there, too."""
