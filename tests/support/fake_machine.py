"""A Debian machine of small scripts on PATH: they act on files of `state` and log what they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudtrain.core.errors import NodeUnreachable
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Completed
from cloudtrain.core.retry import Clock
from cloudtrain.core.shell import Command, Step
from cloudtrain.playbooks import base, nvidia
from cloudtrain.playbooks.apply import apply
from tests.support.nodes_here import HereTransport, Remembered, node

REAL = (
    "sh",
    "env",
    "cut",
    "sort",
    "head",
    "tail",
    "sed",
    "date",
    "touch",
    "rm",
    "mv",
    "ln",
    "true",
)

FAKES = {
    "sudo": '[ "$1" = -n ] && shift && exec "$@"',
    "id": "echo 1000",
    "sleep": 'echo "$1" >>"$STATE/slept"',
    "sync": ":",
    "uname": 'exec cat "$STATE/kernel"',
    "cat": (
        'case "$*" in\n'
        '/proc/sys/kernel/random/boot_id) exec /usr/bin/cat "$STATE/boot";;\n'
        'esac\nexec /usr/bin/cat "$@"'
    ),
    # Who looks through all processes of this machine would find other people's.
    "grep": (
        'case "$*" in *CLOUDTRAIN_TASK=*) [ -e "$STATE/training" ]; exit;; esac\n'
        'exec /usr/bin/grep "$@"'
    ),
    "pgrep": "exit 1",
    "dmesg": ":",
    "apt-mark": "shift; echo hold >>$STATE/log; for name; do echo $name >>$STATE/held; done",
    "dpkg": (
        'case "$1" in\n'
        "--configure) cat $STATE/half >>$STATE/installed 2>/dev/null; rm -f $STATE/half;;\n"
        "--audit) cat $STATE/half 2>/dev/null;;\n"
        "esac; exit 0"
    ),
    "dpkg-query": (
        'case "$*" in *Eflag*) sed "s/^/reinstreq /" $STATE/mess 2>/dev/null; exit;; esac\n'
        'while read -r name; do echo "ii  $name"; done <"$STATE/installed"'
    ),
    "apt-get": """\
for last; do :; done
case " $* " in *" --fix-broken "*) exit 0;; esac
case " $* " in
    *" --reinstall "*) rm $STATE/mess; rm "$MACHINE/var/lib/dpkg/status"; exit 0;;
esac
case " $* " in
    *" update "*) echo update >>$STATE/log
        [ -s $STATE/update-fails ] || exit 0; head -n 1 $STATE/update-fails >&2
        sed -i 1d $STATE/update-fails; exit 100;;
    *" install "*) names=${*#*install };;
esac
fit() {  # each line of `misfits` is two packages that want different versions of a third
    while read -r one other; do
        case " $names " in *" $one "*) case " $names " in *" $other "*)
            echo " $other : Depends: another version of $one"
            echo "E: Unable to correct problems, you have held broken packages." >&2
            return 1;; esac;;
        esac
    done <$STATE/misfits
}
case " $* " in
    *" -s "*) for name in $names; do /usr/bin/grep -qx -- "$name" $STATE/archive ||
        { echo "E: Unable to locate package $name" >&2; exit 100; }; done; fit && exit 0; exit 100;;
esac
fit || exit 100
[ ! -s $STATE/half ] || { echo "E: dpkg was interrupted" >&2; exit 100; }
echo "install $names" >>$STATE/log
[ ! -e $STATE/mirror-fails ] || { rm $STATE/mirror-fails; echo "E: Failed to fetch" >&2; exit 100; }
for name in $names; do
    /usr/bin/grep -qx -- "$name" $STATE/archive || { echo "E: no $name" >&2; exit 100; }
    echo $name >>$STATE/half
    [ ! -e $STATE/killed-at-$name ] || { rm $STATE/killed-at-$name; kill -9 0; }
done
/usr/bin/cat $STATE/half >>$STATE/installed; rm $STATE/half
for name in $names; do [ ! -e $STATE/brings-$name ] || . $STATE/brings-$name; done""",
    "modinfo": 'exec /usr/bin/grep -q "^linux-modules-nvidia-.*-$2$" "$STATE/installed"',
    "modprobe": (
        'echo "modprobe $*" >>$STATE/log\n'
        '[ ! -s "$STATE/rejected" ] || { cat "$STATE/rejected" >&2; exit 1; }\n'
        '/usr/bin/grep -q "^linux-modules-nvidia-.*-$(cat $STATE/kernel)$" $STATE/installed ||\n'
        '{ echo "modprobe: FATAL: Module $1 not found" >&2; exit 1; }; touch "$STATE/loaded"'
    ),
    "mokutil": '[ "$1" = --sb-state ] && cat "$STATE/secure-boot"',
    "nvidia-smi": """\
if [ ! -e $STATE/loaded ]; then
    echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    exit 9
fi
for gpu in $(/usr/bin/cat $STATE/gpus); do
    case "$*" in
        "-pm 1") touch $STATE/persistent;;
        *driver_version*) /usr/bin/cat $STATE/driver;;
        *fabric.state*) [ -s $STATE/in-progress ] || { echo "[N/A]"; continue; }
            echo "In Progress"; sed -i 1d $STATE/in-progress;;
        *persistence_mode*) [ -e $STATE/persistent ] && echo Enabled || echo Disabled;;
        -L) echo "GPU $gpu: NVIDIA";;
    esac
done""",
    "systemctl": """\
echo "systemctl $*" >>$STATE/log
case "$1" in
    reboot) [ ! -e $STATE/next-kernel ] || mv $STATE/next-kernel $STATE/kernel
        echo again >>$STATE/boot; rm -f $STATE/loaded;;
    is-enabled) [ -e $STATE/masked ] && echo masked || echo enabled;;
    mask) touch $STATE/masked;;
    is-active) test -e $STATE/fabric;;
    enable) [ ! -e $STATE/fabric-missing ] ||
        /usr/bin/grep -q fabricmanager $STATE/installed || exit 1
        touch $STATE/fabric;;
esac""",
    "timedatectl": (
        'case "$1" in\nshow) [ -e $STATE/synchronized ] && echo yes || echo no;;\n'
        "set-ntp) [ ! -e $STATE/has-ntp ] || touch $STATE/synchronized;;\nesac"
    ),
    "cloud-init": (
        'echo "cloud-init $*" >>$STATE/log\ncase "$*" in\n'
        '"status --wait") touch "$MACHINE/run/cloud-init/result.json"\n'
        "exit $(cat $STATE/boot-exit);;\n"
        '*) echo "status: error"; echo "detail: runcmd failed";;\nesac'
    ),
    "timeout": 'shift; exec "$@"',
}


class RebootingTransport(HereTransport):
    """Answers nothing for a few questions after a reboot."""

    down = 0

    def run(self, node: Node, command: Command, **more: object) -> Completed:
        done = super().run(node, command, **more)  # type: ignore[arg-type]
        if "systemctl reboot" in command.arguments[2] and done.exit_code == 0:
            self.down = 3
            raise NodeUnreachable(node.name, "the connection broke")
        return done

    def ask(self, node: Node, script_: str, *, timeout: float = 30.0) -> Completed:
        if self.down:
            self.down -= 1
            raise NodeUnreachable(node.name, "connection refused")
        return super().ask(node, script_, timeout=timeout)


@dataclass
class FakeMachine:
    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state"

    def put(self, name: str, *lines: str) -> None:
        (self.state / name).write_text("".join(f"{line}\n" for line in lines))

    def read(self, name: str) -> list[str]:
        path = self.state / name
        return path.read_text().splitlines() if path.exists() else []

    def device(self, name: str, device_class: str, vendor: str = "0x10de") -> None:
        folder = self.root / "machine/sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{device_class}\n")

    def transport(self) -> RebootingTransport:
        environ = {
            "PATH": str(self.root / "bin"),
            "STATE": str(self.state),
            "MACHINE": str(self.root / "machine"),
        }
        return RebootingTransport(self.root / "homes", environ)

    def apply(self, steps: Sequence[Step]) -> list[str]:
        """What is shown; each wait is over at once."""
        stage = Remembered()
        apply(
            lambda _: steps,
            [node()],
            self.transport(),
            stage,
            clock=Clock(sleep=lambda seconds: False),
        )
        return [text for _, text in [*stage.lines, *stage.ended]]


def fake_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """An Ubuntu on GCP that has just booted, with systemd, sudo and nothing else."""
    machine = FakeMachine(folder)
    for name in ("bin", "state", "machine/run/systemd/system", "machine/run/cloud-init"):
        (folder / name).mkdir(parents=True)
    for tool in REAL:
        (folder / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    for tool, text in FAKES.items():
        (folder / "bin" / tool).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / tool).chmod(0o755)
    (folder / "machine/etc").mkdir()
    (folder / "machine/etc/os-release").write_text("NAME=Ubuntu\nID=ubuntu\n")
    machine.put("installed")
    machine.put("archive")
    machine.put("misfits")
    machine.put("secure-boot", "SecureBoot disabled")
    machine.put("kernel", "6.8.0-1015-gcp")
    machine.put("boot", "first")
    machine.put("boot-exit", "0")
    monkeypatch.setattr(base, "ROOT", str(folder / "machine"))
    monkeypatch.setattr(nvidia, "ROOT", str(folder / "machine"))
    return machine
