"""POSIX sh scripts for enrolled machines; `$1` is the cluster."""

ENROLL = r"""
set -eu
umask 077
mkdir -p "$HOME/.ssh" "$HOME/.cloudtrain/$1/nodes"
keys="$HOME/.ssh/authorized_keys"
: >>"$keys"
if ! grep -qxF -- "$3" "$keys"; then
    [ -z "$(tail -c 1 "$keys")" ] || echo >>"$keys"
    printf '%s\n' "$3" >>"$keys"
fi
[ -e "$HOME/.cloudtrain/$1/owner" ] || printf '%s\n' "$4" >"$HOME/.cloudtrain/$1/owner"
: >"$HOME/.cloudtrain/$1/nodes/$2"
"""
"""`$2`: node. `$3`: line of our key. `$4`: owner, as JSON. The node's file is written last: it
marks the machine as enrolled."""

IS_ENROLLED = r"""
if [ -e "$HOME/.cloudtrain/$1/nodes/$2" ]; then
    echo yes
    head -c 4096 "$HOME/.cloudtrain/$1/owner" 2>/dev/null || true
else
    echo no
fi
"""
"""The second line is the owner that `ENROLL` wrote; earlier versions wrote none."""

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
nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c || true
df -Pk "$HOME" | awk 'NR == 2 && $4 ~ /^[0-9]+$/ {printf "%d GB free", $4 / 1000000}'
"""

_FORGET_KEY = r"""
keys="$HOME/.ssh/authorized_keys"
if grep -qs -- " $label\$" "$keys"; then
    # Through a copy, so that a kill leaves the user's own keys as they were.
    (umask 077; grep -v -- " $label\$" "$keys" >"$keys.cloudtrain" || true)
    chmod --reference="$keys" "$keys.cloudtrain" 2>/dev/null || chmod 600 "$keys.cloudtrain"
    mv "$keys.cloudtrain" "$keys"
fi
"""

CLEAR = (
    r"""
set -eu
place="$HOME/.cloudtrain/$1"
label=$2
ours() {
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
rm -rf -- "$place"
rmdir "$HOME/.cloudtrain" 2>/dev/null || true
"""
    + _FORGET_KEY
)
"""`$2`: label of our key. The key is removed last, as it gives us access."""

REMOVE = (
    r"""
set -eu
label=${3##* }
rm -f -- "$HOME/.cloudtrain/$1/nodes/$2"
if rmdir "$HOME/.cloudtrain/$1/nodes" 2>/dev/null; then
    rm -f -- "$HOME/.cloudtrain/$1/owner"
    rmdir "$HOME/.cloudtrain/$1" 2>/dev/null || true
    rmdir "$HOME/.cloudtrain" 2>/dev/null || true
"""
    + _FORGET_KEY
    + "fi\n"
)
"""`$2`: node. `$3`: line of our key, which stays while the machine has another node."""
