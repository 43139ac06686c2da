"""Attacks of a task of a local node on the machine that it runs on, and what came of each.

Where one succeeds, the machine is as before: what is not ours is opened and not written, and a file
in a folder of the system is deleted.

`python -m tests.support.local_attacks FOLDER` plays the machine's user, in any user's name: it has
secrets, another cluster and sockets, has a node run `on_node`, and prints what reached something.
"""

# What a task would call: `os`, as its programs do, and files that are only opened.
# ruff: noqa: PTH110, PTH115, PTH123, PTH207, PTH211, SIM105, SIM115, RUF005

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

PLANTED = "planted-secret"
SECRETS = (
    *(".ssh/id_ed25519", ".aws/credentials", ".config/gcloud/credentials.db", ".azure/token"),
    *(".bash_history", ".docker/config.json", "project/train.py"),
)
KEY = 0x636C_7472
MARK = "cloudtrain-attack.pth"


def on_node(facts: dict[str, Any]) -> dict[str, str]:
    """What each attack reached; nothing for those that were refused."""
    import ctypes
    import glob
    import os
    import socket
    import stat

    def kind(path: str) -> int:
        try:
            return os.lstat(path).st_mode
        except OSError:
            return 0

    planted = facts["planted"].encode()
    libc = ctypes.CDLL(None, use_errno=True)
    found: dict[str, str] = {}

    def attack(name: str, action: Any) -> None:
        try:
            result = action()
        except (OSError, ValueError):
            return
        if result:
            found[name] = str(result)

    def read(path: str) -> bool:
        with open(path, "rb") as file:
            return planted in file.read(1 << 20)

    def write(path: str) -> str:
        with open(path, "ab") as file:
            file.write(b"x")
        return path

    def done(call: Any, *arguments: Any) -> bool:
        call(*arguments)
        return True

    def succeeds(result: int) -> bool:
        return bool(result != -1)

    def connects(family: int, place: Any) -> bool:
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.settimeout(2)
            one.connect(place)
            return True

    for path in facts["secrets"]:
        attack(f"reads {path}", lambda path=path: read(path))
        attack(f"finds {path}", lambda path=path: os.lstat(path))
        for process in glob.glob("/proc/[0-9]*"):
            attack(f"reads it by {process}/root", lambda p=process, s=path: read(f"{p}/root{s}"))
            attack(f"reads it by {process}/cwd", lambda p=process, s=path: read(f"{p}/cwd/{s}"))
    attack("reads /etc/shadow", lambda: open("/etc/shadow").read())
    for path in glob.glob("/proc/[0-9]*/environ"):
        attack(f"reads {path}", lambda path=path: read(path))
    attack("has a variable", lambda: facts["planted"] in str(os.environ))
    attack("sees the user's processes", lambda: os.path.exists(f"/proc/{facts['pid']}"))
    attack("signals one", lambda: done(os.kill, facts["pid"], 0))
    attack("traces one", lambda: succeeds(libc.ptrace(16, facts["pid"], 0, 0)))
    attack("traces its server", lambda: succeeds(libc.ptrace(16, 1, 0, 0)))
    attack("opens its server's memory", lambda: open("/proc/1/mem", "rb"))
    for path in glob.glob("/proc/1/fd/*") + ["/proc/1/root", "/proc/1/cwd", "/proc/1/exe"]:
        attack(f"follows {path}", lambda path=path: os.readlink(path))
        attack(f"opens {path}", lambda path=path: os.open(path, os.O_RDONLY))
    attack("reads its server's variables", lambda: open("/proc/1/environ", "rb").read())
    attack("inherits a file", lambda: [fd for fd in range(3, 256) if _is_open(fd)])

    for path in facts["read_only"]:
        attack(f"writes {path}", lambda path=path: write(path))
        attack(f"links {path}", lambda path=path: done(os.link, path, "hard"))
        attack(f"changes {path}", lambda path=path: done(os.chmod, path, 0o777))
        attack(f"removes {path}", lambda path=path: done(os.rename, path, path + "2"))
    for path in facts["folders"]:  # what comes of it, the machine says
        try:
            write(f"{path}/{facts['mark']}")
        except OSError:
            pass
    for pattern in ("/sys/fs/cgroup/**/release_agent", "/sys/fs/cgroup/*/cgroup.procs"):
        for path in glob.glob(pattern, recursive=True)[:50]:
            attack(f"may write {path}", lambda path=path: os.open(path, os.O_WRONLY))
    for path in ("/sys/fs/cgroup", *glob.glob("/sys/fs/cgroup/*")):
        attack(f"may write {path}", lambda path=path: os.access(path, os.W_OK))
    for name in ("kernel/core_pattern", "kernel/modprobe", "user/max_user_namespaces"):
        attack(f"may set {name}", lambda name=name: os.open(f"/proc/sys/{name}", os.O_WRONLY))
    attack("may write sysrq-trigger", lambda: os.open("/proc/sysrq-trigger", os.O_WRONLY))
    devices = [
        path
        for path in glob.glob("/dev/**", recursive=True)
        if stat.S_ISBLK(kind(path)) or path in ("/dev/mem", "/dev/kmsg", "/dev/fuse")
    ]
    attack("has devices of the machine", lambda: devices)

    attack("mounts", lambda: succeeds(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)))
    attack("unmounts", lambda: succeeds(libc.umount2(facts["home"].encode(), 2)))
    attack("remounts", lambda: succeeds(libc.mount(b"none", b"/", None, 4096 | 32, None)))
    attack("makes a device", lambda: done(os.mknod, "disk", 0o600 | stat.S_IFBLK, 0x0800))
    attack("changes its root", lambda: done(os.chroot, "."))
    for flag in (0x1000_0000, 0x0002_0000, 0x1002_0000, 0x2000_0000):
        attack(f"unshares {flag:x}", lambda flag=flag: succeeds(libc.unshare(flag)))
    attack("clones a user", lambda: succeeds(libc.syscall(facts["clone"], 0x1000_0011, 0, 0, 0, 0)))
    attack("enters a namespace", lambda: succeeds(libc.setns(os.open("/proc/1/ns/mnt", 0), 0)))
    attack("may get rights", lambda: "NoNewPrivs:\t0" in open("/proc/self/status").read())
    attack("becomes root", lambda: done(os.setresuid, 0, 0, 0))
    attack("is root", lambda: os.getuid() == 0)

    search = 10  # KEYCTL_SEARCH in the user's keyring
    keyctl = facts["keyctl"]
    attack("finds a key", lambda: succeeds(libc.syscall(keyctl, search, -4, b"user", planted, 0)))
    attack("reads shared memory", lambda: succeeds(libc.shmget(facts["shm"], 0, 0)))
    for place in facts["sockets"]:
        name = place.replace("@", "\0", 1)
        attack(f"connects to {place}", lambda name=name: connects(socket.AF_UNIX, name))
    for path in glob.glob("/run/**", recursive=True) + glob.glob("/var/**/*.sock", recursive=True):
        if stat.S_ISSOCK(kind(path)) and "systemd/resolve" not in path:
            attack(f"connects to {path}", lambda path=path: connects(socket.AF_UNIX, path))
    os.symlink(facts["secrets"][0], "leak")
    os.symlink(facts["home"], "door")
    return found


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def main(folder: Path) -> dict[str, Any]:
    import pytest

    from cloudtrain.core.events import NodesShareFiles
    from tests.support.fakes import know_hosts
    from tests.support.local_cluster import local_cluster

    home = folder / "user"
    for name in SECRETS:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(PLANTED)
    (home / ".keras" / "datasets").mkdir(parents=True)
    (home / ".keras" / "datasets" / "mnist.npz").write_text("downloaded")
    patch = pytest.MonkeyPatch()
    patch.setenv("HOME", str(home))
    patch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
    cluster = local_cluster(folder, patch, workers=1)
    environment = folder / "cache" / "venvs" / "tf-0"
    site = environment / "lib" / "python3" / "site-packages"
    site.mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text(f"home = {home}/.ssh\n")
    other = cluster.home / "clusters" / "other" / "key"
    other.parent.mkdir(parents=True)
    other.write_text(PLANTED)
    others_cache = folder / "cache" / "own" / "0123456789ab" / "secret"
    others_cache.parent.mkdir(parents=True)
    others_cache.write_text(PLANTED)
    events: list[Any] = []
    nodes = cluster.nodes = cluster.provider.create(cluster.plan, cluster.identity, events.append)
    know_hosts(cluster.identity, nodes)
    refused = [event.why for event in events if isinstance(event, NodesShareFiles)]
    neighbour = cluster.folder(nodes[1]) / "home" / "secret"
    neighbour.write_text(PLANTED)
    sockets = [f"@{folder}/abstract", str(home / "agent.sock"), f"/tmp/{folder.name}-agent"]
    listening = [_listening(place) for place in sockets]
    bystander = subprocess.Popen(["sleep", "600"], env={**os.environ, "TOKEN": PLANTED})
    folders = [
        *(str(folder / "cache"), str(environment.parent), str(site), str(site.parent)),
        *(str(home / ".keras/datasets"), sys.prefix, sys.base_prefix, "/usr/local/bin", "/usr/bin"),
        *("/etc", "/opt", "/var", str(Path(__file__).parents[2] / "cloudtrain")),
    ]
    libc = ctypes.CDLL(None, use_errno=True)
    arm = os.uname().machine == "aarch64"
    add_key, keyctl, clone = (217, 219, 220) if arm else (248, 250, 56)
    libc.syscall(add_key, b"user", PLANTED.encode(), b"x", 1, -4)
    segment = libc.shmget(KEY + os.getuid(), 4096, 0o1600)
    try:
        facts = {
            "planted": PLANTED,
            "mark": MARK,
            "secrets": [
                *(str(home / name) for name in SECRETS),
                *map(str, (other, others_cache, neighbour)),
            ],
            "pid": bystander.pid,
            "home": str(home),
            "read_only": [str(environment / "pyvenv.cfg"), str(home / ".keras/datasets/mnist.npz")],
            "folders": folders,
            "clone": clone,
            "keyctl": keyctl,
            "shm": KEY + os.getuid(),
            "sockets": sockets if _scopes(libc) else sockets[1:],
        }
        source = f"import os\nfrom typing import Any\n{inspect.getsource(_is_open)}\n"
        source += f"{inspect.getsource(on_node)}\nimport json, sys\n"
        source += "print(json.dumps(on_node(json.loads(sys.argv[1]))))\n"
        command = shlex.join(["/usr/bin/python3", "-c", source, json.dumps(facts)])
        with cluster.connect(nodes[0]) as client:
            _, out, error = client.exec_command(command)
            said, problem = out.read().decode(), error.read().decode()
            with client.open_sftp() as sftp:
                reached = _followed(sftp)
            relink = f"rm -rf .keras; ln -s {shlex.quote(str(home))}/.config .keras"
            client.exec_command(relink)[1].channel.recv_exit_status()
        return {
            "refused": refused,
            "uid": os.getuid(),
            "found": json.loads(said) if said else problem,
            "reached": [
                *reached,
                *(path for path in folders if Path(path, MARK).exists()),
                *(["by sftp"] if (home / "x").exists() else []),
            ],
            **_after(cluster, home),
        }
    finally:
        bystander.kill()
        libc.shmctl(segment, 0, None)
        for one in listening:
            one.close()
        Path(sockets[2]).unlink()
        for path in folders:
            Path(path, MARK).unlink(missing_ok=True)
        cluster.destroy()
        patch.undo()


def _after(cluster: Any, home: Path) -> dict[str, Any]:
    """What its links lead to when its server is started again."""
    from cloudtrain.providers.local import processes

    cluster.provider.end_node(cluster.name, cluster.nodes[0].name)
    cluster.create()
    left = processes.tags(lambda tag: tag == cluster.tag(cluster.nodes[0].name))
    return {
        "written": sorted(str(path) for path in (home / ".config").iterdir()),
        "runs_again": bool(left),
    }


def _followed(sftp: Any) -> list[str]:
    """What the machine's user reads by a link that a task has made; and tries to write by one."""
    with contextlib.suppress(OSError):
        sftp.open("door/x", "w").close()
    with contextlib.suppress(OSError):
        return [str(sftp.open("leak").read())]
    return []


def _listening(place: str) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.bind(place.replace("@", "\0", 1))
    one.listen()
    return one


def _scopes(libc: ctypes.CDLL) -> bool:
    """Whether this kernel can refuse abstract sockets: from Linux 6.12 on, with Landlock."""
    return int(libc.syscall(444, None, ctypes.c_size_t(0), 1)) >= 6


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
