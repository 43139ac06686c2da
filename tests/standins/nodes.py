"""Real nodes behind a stand-in: a Debian of its own in namespaces, real cloud-init and sshd.

Only the machine is pretended. A node has its own files, processes, /dev and host name, and shares
this machine's kernel and network, where it has an address of its own in 127.0.0.0/8. Needs root.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import platform
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from tests.support.environments import UV

PACKAGES = (
    "cloud-init,openssh-server,sudo,python3-minimal,iproute2,rsync,ca-certificates,procps,git"
)
UV_PLACE = "usr/local/lib/uv/uv"
LATER = "python3-venv nfs-kernel-server"
"""What the playbooks install on a bare node is in its own archive, for nodes without network."""
ARCHIVE = "srv/debs"
PROGRAMS = ("mmdebstrap", "unshare", "pivot_root", "mount")


def unavailable() -> str | None:
    """Why there can be no nodes here, in words for a skipped test."""
    if os.geteuid() != 0:
        return "would show it on real nodes, which only root can make"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"would show it on real nodes, which need {', '.join(missing)} (`make tools`)"
    return None


SEED = "var/lib/cloud/seed/nocloud"


@dataclass
class _Node:
    name: str
    folder: Path
    process: subprocess.Popen[str] | None = None
    watch: threading.Thread | None = None
    ends: bool = False
    """We end it: nobody is told."""
    lock: threading.RLock = field(default_factory=threading.RLock)


class Nodes:
    """Safe to use from many threads. All of it ends with this process, also when it is killed.

    `on_shutdown(name)` is called when a node has shut itself down: its processes are gone then,
    its disk is kept until `stop`. `binds` are folders of this machine that nodes see read-only,
    under the same paths; what is in the folder `files` is laid over each new disk, and the texts
    that `own_files(name)` has by their paths.
    """

    def __init__(
        self,
        *,
        on_shutdown: Callable[[str], None] = lambda name: None,
        binds: Sequence[Path] = (),
        files: Path | None = None,
        own_files: Callable[[str], Mapping[str, str]] = lambda name: {},
    ) -> None:
        self.on_shutdown = on_shutdown
        self._binds = tuple(binds)
        self._files = files
        self._own_files = own_files
        self._tree = tree()
        self._root = Path(tempfile.mkdtemp(prefix="cloudtrain-nodes-"))
        self._nodes: dict[str, _Node] = {}
        self._addresses: set[str] = set()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self) -> str:
        """One that nobody uses and that was not given out before."""
        with self._lock:
            while True:
                a, b, c = random.randint(16, 250), random.randint(0, 255), random.randint(1, 254)
                address = f"127.{a}.{b}.{c}"
                if address not in self._addresses and _is_free(address):
                    self._addresses.add(address)
                    return address

    def address_of(self, name: str) -> str:
        """Where its sshd listens."""
        file = self._nodes[name].folder / "upper" / "etc/ssh/sshd_config.d/standin.conf"
        return file.read_text().split()[1]

    def gave(self, address: str) -> bool:
        """Whether it is one of those that were given out: a cloud's node may ask for it again."""
        return address in self._addresses

    def start(self, name: str, user_data: str, address: str) -> None:
        """Returns at once; its sshd answers some two seconds later. One that was shut down or
        halted boots again, with its disk as it was.

        cloud-init reads changed user data at each boot on EC2, as DataSourceEc2 has no
        `check_instance_id` (cloudinit/stages.py: "cache invalid in datasource")."""
        with self._lock:
            node = self._nodes.get(name)
            if node is None:
                node = self._nodes[name] = _Node(name, self._root / uuid.uuid4().hex)
        with node.lock:
            if not node.folder.exists():
                self._write_disk(node, user_data)
            elif (seed := node.folder / "upper" / SEED / "user-data").read_text() != user_data:
                seed.write_text(user_data)
                for cache in (node.folder / "upper/var/lib/cloud/instances").glob("*/obj.pkl"):
                    cache.unlink()
            _listen(node, address)
            self._boot(node)

    def halt(self, name: str) -> None:
        """As if the power were cut: no process is left, its disk is kept."""
        node = self._nodes.get(name)
        if node is not None:
            _end(node)

    def stop(self, name: str) -> None:
        """Nothing of it is left."""
        with self._lock:
            node = self._nodes.pop(name, None)
        if node is not None:
            _end(node)
            shutil.rmtree(node.folder, ignore_errors=True)

    def running(self) -> list[str]:
        nodes = tuple(self._nodes.values())
        return sorted(node.name for node in nodes if node.process is not None)

    def boot_log(self, name: str) -> str:
        folder = self._nodes[name].folder
        logs = (folder / "machine.log", folder / "upper" / "var" / "log" / "boot.log")
        return "".join(path.read_text(errors="replace") for path in logs if path.exists())

    def disks(self) -> Path:
        """The folder that holds every node's own files, what it has changed of its system too."""
        return self._root

    def pids(self, name: str) -> list[int]:
        """Of the node's processes, as this machine counts them."""
        process = self._nodes[name].process
        if process is None:
            return []
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        space, found = Path(f"/proc/{first}/ns/pid").readlink(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (entry / "ns" / "pid").readlink() == space:
                    found.append(int(entry.name))
        return found

    def cpu_seconds(self, name: str) -> float:
        """Of all processes that the node has and had since it booted: those that have ended count
        with whoever waited for them, at last its first one."""
        ticks = 0
        for pid in self.pids(name):
            with contextlib.suppress(OSError):
                told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, told[11:15]))  # utime, stime, cutime, cstime: proc(5)
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        for name in tuple(self._nodes):
            self.stop(name)
        shutil.rmtree(self._root, ignore_errors=True)
        atexit.unregister(self.close)

    def _write_disk(self, node: _Node, user_data: str) -> None:
        upper = node.folder / "upper"
        for folder in (upper, node.folder / "work", node.folder / "root"):
            folder.mkdir(parents=True)
        node.folder.chmod(0o700)
        if self._files is not None:
            shutil.copytree(self._files, upper, symlinks=True, dirs_exist_ok=True)
            upper.chmod(0o755)
        for path, text in self._own_files(node.name).items():
            _put(upper, path, text)
        for bind in self._binds:  # Users of the node may pass to it, also through /root.
            (upper / bind.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        identity = f"instance-id: i-{uuid.uuid4().hex[:12]}\nlocal-hostname: {node.name}\n"
        _put(upper, f"{SEED}/user-data", user_data, 0o600)
        _put(upper, f"{SEED}/meta-data", identity)
        _put(upper, "etc/cloud/cloud.cfg.d/99-standin.cfg", _CLOUD_CFG)
        _put(upper, "etc/standin-boot", _BOOT)
        _put(upper, "etc/standin-stages", _STAGES)
        for name, body in _STUBS.items():
            _put(upper, f"usr/{name}", f"#!/bin/sh\n{body}", 0o755)
        _put(upper, "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n")
        _put(upper, "etc/resolv.conf", Path("/etc/resolv.conf").read_text())

    def _boot(self, node: _Node) -> None:
        if node.process is not None:
            return
        node.ends = False
        spaces = ("--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL")
        arguments = (str(node.folder), str(self._tree), *map(str, self._binds))
        node.process = subprocess.Popen(
            ["unshare", *spaces, "/bin/sh", "-c", _MACHINE, "sh", *arguments],
            stdin=subprocess.PIPE,  # it ends with its input: also when this process is killed
            stdout=subprocess.PIPE,  # what its `shutdown` says
            stderr=(node.folder / "machine.log").open("ab"),
            text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        )
        node.watch = threading.Thread(target=self._watch, args=(node, node.process), daemon=True)
        node.watch.start()

    def _watch(self, node: _Node, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        asked = ""
        for line in process.stdout:
            asked = line.strip()
            break
        with node.lock:
            if node.ends or node.process is not process:
                return
            _kill(process)
            node.process = None
            if asked == "reboot":
                self._boot(node)
                return
        self.on_shutdown(node.name)


def tree() -> Path:
    """The files that all nodes start with, made once: half a minute, 300 MB."""
    cache = Path(os.environ.get("CLOUDTRAIN_CACHE") or platformdirs.user_cache_dir("cloudtrain"))
    options = ("--variant=minbase", f"--include={PACKAGES}", f"--customize-hook={_DOWNLOAD}")
    recipe = zlib.crc32(repr((options, UV_PLACE)).encode())
    place = cache / "standin-node" / f"{_suite()}-{recipe:08x}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            half = place.with_suffix(".half")
            shutil.rmtree(half, ignore_errors=True)
            make = ["mmdebstrap", "--quiet", *options, _suite(), str(half)]
            subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
            _index(half / ARCHIVE)
            (half / UV_PLACE).parent.mkdir(parents=True)
            shutil.copy2(UV, half / UV_PLACE)
            (half / "usr/local/bin/uv").symlink_to(f"/{UV_PLACE}")
            half.rename(place)
    return place


_DOWNLOAD = (
    f'mkdir -p "$1/{ARCHIVE}/partial" && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -qq -y '
    f'-o Dir::Cache::Archives="$1/{ARCHIVE}" --download-only install {LATER}'
)


def _index(archive: Path) -> None:
    """What apt reads of an archive: `deb [trusted=yes] file:/srv/debs ./`."""
    told = ""
    for package in sorted(archive.glob("*.deb")):
        asked = ["dpkg-deb", "--field", str(package)]
        field = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        told += f"{field}Filename: ./{package.name}\nSize: {package.stat().st_size}\n"
        told += f"SHA256: {digest}\n\n"
    (archive / "Packages").write_text(told)


def _suite() -> str:
    """This machine's own: its keys and its archive are known to work."""
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def _is_free(address: str) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, 22))
        except OSError:
            return False
    return True


def _end(node: _Node) -> None:
    with node.lock:
        node.ends = True
        if node.process is not None:
            _kill(node.process)
        node.process = None


def _kill(process: subprocess.Popen[str]) -> None:
    """Its first process ends with its input, and the kernel kills all others before `unshare`
    hears of that."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listen(node: _Node, address: str) -> None:
    _put(node.folder / "upper", "etc/ssh/sshd_config.d/standin.conf", f"ListenAddress {address}\n")


def _put(root: Path, path: str, text: str, mode: int = 0o644) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(mode)


# Pid 1 of the node, in the namespaces but still in this machine's files.
_MACHINE = r"""
set -e
folder=$1 tree=$2; shift 2
mount -t overlay overlay \
  -o "lowerdir=$tree,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
cd "$folder/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for device in "null 3" "zero 5" "full 7" "random 8" "urandom 9"; do
  mknod -m 666 "dev/${device% *}" c 1 "${device#* }"
done
mknod -m 666 dev/tty c 5 0
for bind; do
  mkdir -p ".$bind"
  mount --rbind "$bind" ".$bind"
  mount -o remount,bind,ro ".$bind"
done
mkdir -p .machine
pivot_root . .machine
exec chroot . /bin/sh /etc/standin-boot
"""

# What systemd would do, in its order. It ends when its input does.
_BOOT = r"""
umount -l /.machine
mkdir -p /run/sshd
python3 -I /etc/standin-stages </dev/null >>/var/log/boot.log 2>&1 &
exec 3<&0
cat <&3 >/dev/null &
wait $!
"""

# Each stage is a process of its own, as there, but cloud-init is imported once for all four: that
# takes three times as long as what it does here.
_STAGES = """\
import os
import subprocess
import sys

from cloudinit.cmd.main import main


def stage(*words):
    child = os.fork()
    if not child:
        sys.argv = ["/usr/bin/cloud-init", *words]
        sys.exit(main())
    os.waitpid(child, 0)


stage("init", "--local")
stage("init")
subprocess.Popen(["/usr/sbin/sshd", "-D", "-e"])
stage("modules", "--mode=config")
stage("modules", "--mode=final")
"""

# Only the modules that the user data may speak to; the disks and the network are this machine's.
_CLOUD_CFG = """\
datasource_list: [NoCloud, None]
network: {config: disabled}
growpart: {mode: "off"}
resize_rootfs: false
cloud_init_modules: [seed_random, bootcmd, write-files, set_hostname, users-groups, ssh]
cloud_config_modules: [set-passwords, runcmd]
cloud_final_modules: [scripts-per-once, scripts-per-boot, scripts-per-instance, scripts-user]
"""

_SHUTDOWN = r"""
how=poweroff when=+1
for word; do
  case $word in
    -c) exit 0 ;;
    -r | --reboot) how=reboot ;;
    -*) ;;
    now | +*) when=$word; break ;;
  esac
done
[ "$when" != now ] || when=+0
users() { ps -eo pid=,uid= | awk '$2 >= 1000 { print $1 }'; }
{
  sleep "$((${when#+} * 60))"
  kill -TERM $(users)
  for wait in $(seq 100); do [ -n "$(users)" ] || break; sleep 0.1; done
  echo "$how" >/proc/1/fd/1
} </dev/null >/dev/null 2>&1 &
"""
"""Ends users' sessions first, as systemd does, which waits 90 s for them."""
_SYSTEMCTL = r"""
for word; do
  case $word in
    poweroff | halt) exec shutdown -P now ;;
    reboot) exec shutdown -r now ;;
    is-active | is-enabled | status) exit 3 ;;
  esac
done
exit 0
"""
_STUBS = {
    "sbin/shutdown": _SHUTDOWN,
    "sbin/poweroff": "exec shutdown -P now\n",
    "sbin/halt": "exec shutdown -P now\n",
    "sbin/reboot": "exec shutdown -r now\n",
    "bin/systemctl": _SYSTEMCTL,
}
