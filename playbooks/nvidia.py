"""The `nvidia` playbook: installs, loads and pins the driver that GPUs and TensorFlow need."""

from __future__ import annotations

from cloudtrain import catalog
from cloudtrain.catalog import cuda
from cloudtrain.core.cloud import cloud_of, facts_of, is_cloud
from cloudtrain.core.model import Accelerator, ClusterConfig, Node
from cloudtrain.core.shell import Step, script
from cloudtrain.playbooks import scripts
from cloudtrain.training.strategies import strategy_of

ROOT = ""
"""Prefix of every absolute path that is read on the node."""


def wanted(config: ClusterConfig, node: Node) -> Accelerator | None:
    """GPUs that this node should have; none with `provider: local`."""
    group = config.nodes.get(node.role)
    if group is None or facts_of(config.provider).on_this_machine or not strategy_of(config).gpus:
        return None
    return catalog.accelerator_of(config.provider, group)


def steps(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """Steps for rented machines; on any other the driver is its owner's responsibility. The user's
    own requirements may use the GPUs, so `setup.tensorflow` decides only which driver is too old.
    The step's own check is that `nvidia-smi` lists all GPUs."""
    gpus, version = wanted(config, node), config.setup.tensorflow
    if not is_cloud(config.provider):
        return ()
    if gpus is None:
        return _none(config, node)
    oldest = cuda.oldest_driver(version, gpus.kind) if version else "0"
    driver = cuda.driver(gpus.kind)
    cloud = cloud_of(config.provider)
    server, modules = f"{driver.branch}-server", "-open" if driver.open else ""
    arguments = (ROOT, str(gpus.count), oldest)
    return (
        Step(
            name="NVIDIA driver",
            run=script(
                scripts.DEBIAN + _LOOK + _INSTALL,
                *arguments,
                *(str(gpus), server, modules, cloud.no_driver.get(gpus.kind, "") if cloud else ""),
            ),
            unless=script(_LOOK + _THERE, *arguments),
            reboots=True,
        ),
        Step(
            name="NVIDIA persistence mode",
            run=script(scripts.DEBIAN + "as_root nvidia-smi -pm 1 </dev/null"),
            unless=script(_PERSISTENT),
        ),
    )


def _none(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """Check that an unknown machine has no GPUs: it would train on its CPU at their price."""
    group = config.nodes.get(node.role)
    machine = group.machine if group else None
    is_known = machine is None or catalog.machine_type(config.provider, machine) is not None
    if is_known or not strategy_of(config).gpus:
        return ()
    return (
        Step(
            name="no unexpected GPUs",
            run=script(_LOOK + _UNNAMED, ROOT, "0", "0", str(machine)),
            unless=script(_LOOK + """[ "$(on_bus 03)" = 0 ]\n""", ROOT, "0", "0"),
        ),
    )


_LOOK = """\
root=$1 count=$2 oldest=$3
drivers() {
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1 </dev/null
}
on_bus() {  # PCI devices of NVIDIA, of a class: 03… display and 3D, 0680 NVSwitch
    grep -lsx 0x10de "$root"/sys/bus/pci/devices/*/vendor </dev/null | while read -r vendor; do
        cat "${vendor%/vendor}/class"
    done | grep -c "^0x$1" || true
}
serves() {
    [ "$(printf '%s\\n' "$oldest" "$1" | sort -V | head -n 1)" = "$oldest" ]
}
# From B200 on NVSwitches are reached by InfiniBand, and are none on the bus; then only the GPUs say
# that their fabric is not ready: https://github.com/siderolabs/extensions/pull/717, which quotes
# NVIDIA's guide. Other GPUs answer `[N/A]` or `Not Supported`, old drivers know no such field.
registering() {
    nvidia-smi --query-gpu=fabric.state --format=csv,noheader 2>/dev/null </dev/null |
        grep -q 'In Progress'
}
fabric() {
    ! registering || return 1
    [ "$(on_bus 0680)" = 0 ] || systemctl is-active --quiet nvidia-fabricmanager
}
"""

_THERE = """\
list=$(drivers) || exit 1
[ "$(echo "$list" | grep -cE '^[0-9.]+$')" = "$count" ] && serves "${list%%[!0-9.]*}" && fabric
"""

_UNNAMED = """\
echo "$4 has $(on_bus 03) NVIDIA GPUs, but the config has none: it would train on its CPU" >&2
echo "hint: set accelerator: KIND:COUNT beside the machine, or use a machine without GPUs" >&2
exit 1
"""

# Without it the driver releases each GPU when its last user ends, and takes seconds to reload.
_PERSISTENT = """\
modes=$(nvidia-smi --query-gpu=persistence_mode --format=csv,noheader </dev/null) &&
    ! echo "$modes" | grep -q Disabled
"""

_INSTALL = """\
set -eu
wanted=$4 server=$5 open=$6 grid=$7
switches=$(on_bus 0680)
fail() {
    echo "$1" >&2
    echo "hint: $2" >&2
    exit 1
}
answers() {
    list=$(drivers)
}
load() {
    for module in nvidia nvidia_uvm; do
        words=$(as_root modprobe "$module" 2>&1) && continue
        [ -z "$words" ] || echo "$words"
        case $words in
            *"Key was rejected"*|*"Required key not available"*) refused;;
        esac
        return 0
    done
    [ "$switches" = 0 ] || as_root systemctl enable --now nvidia-fabricmanager || true
}
# The fabric manager needs a moment for it.
joined() {
    left=180
    while registering; do
        [ "$left" -gt 0 ] || fail "the GPUs do not join their NVSwitches: their fabric.state is \
In Progress" "run \\`systemctl status nvidia-fabricmanager\\` on the node; 8 × B200 also needs \
nvlsm, which image: deeplearning has"
        sleep 5
        left=$((left - 5))
    done
}
refused() {
    state=$(mokutil --sb-state 2>/dev/null | head -n 1) || true
    fail "the kernel rejects NVIDIA modules that are not signed with a known key: \
${state:-Secure Boot seems to be on} (${words##*: })" \
        "use image: auto, whose modules are signed, or an image or a policy of yours without \
Secure Boot"
}

there=$(on_bus 03)
[ "$there" = "$count" ] || fail "the machine has $there NVIDIA GPUs on its PCI bus, not $wanted" \
    "use a machine type that has $wanted, or check what the cloud created"

# Google's deep learning images install the driver at their first boot, or on request. The path is
# in two pieces: pgrep would find this text, too.
own=$root/opt/deeplearning/install"-driver.sh"
if [ -x "$own" ] && ! answers; then
    echo "waiting for the image's own installation of the driver"
    left=900
    while pgrep -f "$own" >/dev/null && [ "$left" -gt 0 ]; do
        sleep 5
        left=$((left - 5))
    done
    answers || as_root "$own" </dev/null || true
fi

from_ubuntu() {
    dpkg-query -W -f '${db:Status-Abbrev}\\n' 'nvidia-utils-*' 2>/dev/null | grep -q '^[ih]i'
}
other=
if answers; then
    version=${list%%[!0-9.]*}
    if serves "$version"; then
        load
        joined
        ! fabric || exit 0
        other="the driver $version is installed without the fabric manager for its NVSwitches"
        way="run \\`systemctl status nvidia-fabricmanager\\` on the node"
    else
        other="the driver $version is installed, but at least $oldest is needed"
        way="use image: auto, or an older setup.tensorflow"
    fi
    echo "$other"
    from_ubuntu ||
        fail "$other; it cannot be replaced, as it is not one of Ubuntu's packages" "$way"
fi
[ -z "$grid" ] || fail "$grid" "use an image that has it, or other GPUs"

kernel=$(uname -r)
flavour=${kernel##*[0-9]-}
series=$(echo "$kernel" | cut -d. -f1,2)
complete() {
    modinfo -k "$kernel" nvidia && command -v nvidia-smi && [ -z "$(dpkg --audit)" ]
}
if [ -n "$other" ] || ! complete >/dev/null 2>&1; then
    grep -qs '^ID=ubuntu' "$root/etc/os-release" || fail \
        "no NVIDIA driver, and cloudtrain installs it only on Ubuntu" \
        "use image: auto, ubuntu-22.04 or deeplearning, or an image that has the driver"
    debian_repair || true
    apt_update || true
    # Signed modules, built for this kernel; if the archive no longer has them, or only for an older
    # driver, those of its newer kernel. The whole set is tried at once: each of these packages
    # needs the others in exactly its own version.
    found= why=
    for name in "$kernel" "$flavour-$series" "$flavour"; do
        set -- "linux-modules-nvidia-$server$open-$name" \
            "nvidia-headless-no-dkms-$server$open" "nvidia-utils-$server"
        [ "$switches" = 0 ] || set -- "$@" "nvidia-fabricmanager-${server%-server}"
        if said=$(apt_get -s install "$@" 2>&1); then
            found=$1
            break
        fi
        why=${why:-$(echo "$said" | grep -E '^E:|Depends:|held' | tail -n 3)}
    done
    if [ -z "$found" ]; then
        [ -z "$why" ] || echo "$why" >&2
        [ -z "$apt_says" ] || fail "$apt_says" "the node needs Ubuntu's package mirror"
        with=
        [ "$switches" = 0 ] || with=", with the fabric manager that its NVSwitches need,"
        fail "Ubuntu has no modules $server$open$with for the kernel $kernel" \
            "use image: auto, ubuntu-22.04, ubuntu-24.04 or deeplearning"
    fi
    debian_install "$@" || fail "apt-get could not install the driver" \
        "it needs root or sudo without a password, and Ubuntu's package mirror"
fi

# Upgrading one of them without the other, or the kernel, would leave no driver.
held=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\\n' 'linux-image*' 'linux-headers*' \
    'linux-modules*' "linux-$flavour*" 'nvidia-*' 'libnvidia-*' 2>/dev/null |
    sed -n 's/^[ih]i *//p')
[ -z "$held" ] || as_root apt-mark hold $held >/dev/null
load
joined
answers || as_root dmesg 2>/dev/null | grep -E 'NVRM|nouveau|[Ll]ockdown' | tail -n 3 || true
echo "$list"
"""
