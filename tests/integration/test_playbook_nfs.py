"""The `nfs` playbook: what it writes and runs, on a machine of small scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cloudtrain.core.errors import StepFailed
from cloudtrain.core.retry import Clock
from cloudtrain.core.shell import Step
from cloudtrain.playbooks import nfs
from cloudtrain.playbooks.apply import apply
from tests.support.nodes_here import HereTransport, Remembered, node

FOLDER = "/srv/cloudtrain/mnist"

FAKES = {
    "sudo": '[ "$1" = -n ] && shift && exec "$@"',
    "sleep": ":",
    "id": '[ "$1" = -g ] && echo 1001 || echo 1000',
    "install": 'echo "install $*" >>$STATE/log; for last; do :; done; mkdir -p "$last"',
    "systemctl": """\
echo "systemctl $*" >>$STATE/log
case "$1" in is-active) test -e "$STATE/$3";; enable) touch "$STATE/$3";; esac""",
    "apt-get": """\
case " $* " in *" --fix-broken "*) exit 0;; *" install "*) for last; do :; done;; *) exit 0;; esac
[ ! -e $STATE/offline ] || exit 100
echo "install $last" >>$STATE/log
for name in exportfs mount.nfs4; do ln -sf /usr/bin/true "$BIN/$name"; done
mv "$BIN/tabled" "$BIN/exportfs" 2>/dev/null""",
    "tabled": """echo "exportfs $*" >>$STATE/log
sed "s/ /\\t/" $MACHINE/etc/exports.d/*.exports >$MACHINE/var/lib/nfs/etab""",
    "dpkg": "exit 0",
    "dpkg-query": "exit 0",
    "mount": """\
echo "mount $*" >>$STATE/log
[ ! -e $STATE/unreachable ] || { echo "mount.nfs4: Connection timed out" >&2; exit 32; }
for last; do before=$at at=$last; done
echo "$before $last nfs4 rw 0 0" >>$MACHINE/proc/mounts; rm -f $STATE/stale""",
    "umount": 'echo "umount $*" >>$STATE/log; : >$MACHINE/proc/mounts',
    "timeout": 'shift 3; exec "$@"',
    "ls": '[ ! -e $STATE/stale ] || { echo "Stale file handle" >&2; exit 2; }',
}


class Machine:
    def __init__(self, folder: Path) -> None:
        self.bin, self.state, self.root = folder / "bin", folder / "state", folder / "machine"
        for place in (self.bin, self.state, self.root / "run/systemd/system", self.root / "proc"):
            place.mkdir(parents=True)
        (self.root / "var/lib/nfs").mkdir(parents=True)
        (self.root / "proc/mounts").touch()
        self.release("ubuntu", "24.04")
        for name, text in FAKES.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.bin / name).chmod(0o755)
        environ = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "STATE": str(self.state),
            "BIN": str(self.bin),
            "MACHINE": str(self.root),
        }
        self.transport = HereTransport(folder / "homes", environ)

    def release(self, name: str, version: str) -> None:
        (self.root / "etc").mkdir(exist_ok=True)
        (self.root / "etc/os-release").write_text(f'ID={name}\nVERSION_ID="{version}"\n')

    def apply(self, steps: Sequence[Step]) -> list[str]:
        """What was done."""
        log = self.state / "log"
        log.write_text("")
        clock = Clock(sleep=lambda seconds: False)
        apply(lambda _: steps, [node()], self.transport, Remembered(), clock=clock)
        told = (line for line in log.read_text().splitlines() if "is-active" not in line)
        return [line.replace(str(self.root), "") for line in told]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(nfs, "ROOT", str(tmp_path / "machine"))
    # Where the machine's own programs are: the real ones are not to be found.
    for name in ("_INSTALLED", "_EXPORT", "_MOUNT"):
        text = getattr(nfs, name).replace(":/usr/sbin:/sbin", "")
        monkeypatch.setattr(nfs, name, text)
    return Machine(tmp_path)


def test_a_folder_is_served_to_the_other_nodes_addresses_and_to_no_one_else(
    machine: Machine,
) -> None:
    steps = nfs.server_steps(FOLDER, ["10.0.0.3", "10.0.0.4"])
    assert machine.apply(steps) == [
        f"install -d -o 1000 -g 1001 -m 700 {FOLDER}",
        "systemctl mask rpcbind.service rpcbind.socket",
        "install nfs-kernel-server",
        "systemctl enable --now nfs-server",
        "exportfs -ra",
    ]
    options = "(rw,sync,no_subtree_check,all_squash,anonuid=1000,anongid=1001)"
    written = (machine.root / "etc/exports.d/cloudtrain.exports").read_text()
    assert written == f"{FOLDER} 10.0.0.3{options} 10.0.0.4{options}\n"
    assert (machine.root / "etc/nfs.conf.d/cloudtrain.conf").read_text() == "[nfsd]\nvers3=n\n"
    assert machine.apply(steps) == []


def test_a_node_with_another_address_is_exported_to_and_the_one_before_is_not(
    machine: Machine,
) -> None:
    machine.apply(nfs.server_steps(FOLDER, ["10.0.0.3"]))
    assert machine.apply(nfs.server_steps(FOLDER, ["10.0.0.9"])) == [
        "systemctl enable --now nfs-server",
        "exportfs -ra",
    ]
    assert "10.0.0.3" not in (machine.root / "etc/exports.d/cloudtrain.exports").read_text()


def test_a_cluster_of_one_node_installs_no_server(machine: Machine) -> None:
    assert machine.apply(nfs.server_steps(FOLDER, ())) == [
        f"install -d -o 1000 -g 1001 -m 700 {FOLDER}"
    ]


def mounted_from(machine: Machine, server: str) -> list[str]:
    folder = str(machine.root / "srv/mnist")
    return machine.apply(nfs.client_steps(folder, server))


MOUNT = f"mount -t nfs4 -o {nfs.OPTIONS}"


def test_a_client_mounts_it_once(machine: Machine) -> None:
    assert mounted_from(machine, "10.0.0.2") == [
        "systemctl mask rpcbind.service rpcbind.socket",
        "install nfs-common",
        f"{MOUNT} 10.0.0.2:/srv/mnist /srv/mnist",
    ]
    assert mounted_from(machine, "10.0.0.2") == []


def test_a_stale_folder_is_mounted_again(machine: Machine) -> None:
    mounted_from(machine, "10.0.0.2")
    (machine.state / "stale").touch()
    assert mounted_from(machine, "10.0.0.2") == [
        "umount -f -l /srv/mnist",
        f"{MOUNT} 10.0.0.2:/srv/mnist /srv/mnist",
    ]


def test_the_folder_of_another_server_is_replaced(machine: Machine) -> None:
    mounted_from(machine, "10.0.0.2")
    assert mounted_from(machine, "fd00::7") == [
        "umount -f -l /srv/mnist",
        f"{MOUNT} [fd00::7]:/srv/mnist /srv/mnist",
    ]


def test_a_server_that_cannot_be_reached_is_one_error_with_the_way_out(machine: Machine) -> None:
    (machine.state / "unreachable").touch()
    with pytest.raises(StepFailed, match=r"cannot mount 10\.0\.0\.2:") as caught:
        mounted_from(machine, "10.0.0.2")
    assert "TCP port 2049" in (caught.value.hint or "")


def test_a_package_that_cannot_be_had_is_named(machine: Machine) -> None:
    (machine.state / "offline").touch()
    with pytest.raises(StepFailed, match="the node lacks nfs-kernel-server, and apt-get") as caught:
        machine.apply(nfs.server_steps(FOLDER, ["10.0.0.3"]))
    assert "shared.path" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "version", "masked"),
    [
        ("debian", "12", True),
        ("ubuntu", "22.04", True),
        ("debian", "11", False),
        ("ubuntu", "20.04", False),
    ],
)
def test_rpcbind_stays_where_the_server_would_not_start_without_it(
    machine: Machine, name: str, version: str, masked: bool
) -> None:
    machine.release(name, version)
    done = machine.apply(nfs.server_steps(FOLDER, ["10.0.0.3"]))
    assert ("systemctl mask rpcbind.service rpcbind.socket" in done) is masked
    assert done[-1] == "exportfs -ra"
