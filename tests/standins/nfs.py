"""The kernel's part of NFS between real nodes: who may mount what, and one folder on two machines.

nfs-kernel-server and nfs-common are Debian's own, installed on the nodes by apt, and exportfs reads
the exports. What this machine's kernel may lack is pretended: `mount -t nfs4` on a node asks here,
the server's table of exports decides by the node's address, and the server's folder appears at the
client's path. It is the same folder then, so nothing is shown of caches, locks and lost servers.
"""

from __future__ import annotations

import re
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from tests.standins.nodes import Nodes

MOUNT = r"""#!/bin/bash
case " $* " in
    *" -t nfs4 "*) ;;
    *) exec /bin/mount "$@";;
esac
folder=${!#}; at=$(($# - 1)); source=${!at}; options=${*:4:1}
command -v mount.nfs4 >/dev/null || { echo "mount: unknown filesystem type 'nfs4'" >&2; exit 32; }
exec 3<>/dev/tcp/127.0.0.1/PORT
printf '%s\t%s\t%s\t%s\n' "$(hostname)" "$source" "$folder" "$options" >&3
read -r answer <&3
[ "$answer" = ok ] || { echo "mount.nfs4: $answer" >&2; exit 32; }
mkdir -p /run/nfs
echo "$folder $source" >>/run/nfs/mounted
"""

# The kernel's table of mounts names the server.
AWK = r"""#!/bin/sh
for file; do :; done
if [ "$file" = /proc/mounts ] && [ -e /run/nfs/mounted ]; then
    /usr/bin/awk 'NR == FNR { from[$1] = $2; next } { if ($2 in from) $1 = from[$2]; print }' \
        /run/nfs/mounted /proc/mounts >/tmp/.mounts.$$
    case $# in 4) set -- "$1" "$2" "$3" /tmp/.mounts.$$;; esac
    /usr/bin/awk "$@"; code=$?; rm -f /tmp/.mounts.$$; exit $code
fi
exec /usr/bin/awk "$@"
"""


def with_nfs(image: Path, port: int) -> None:
    """The nodes' `mount` asks at this port of this machine."""
    for name, text in (("sbin/mount", MOUNT), ("bin/awk", AWK)):
        place = image / "usr/local" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.replace("PORT", str(port)))
        place.chmod(0o755)


class Nfs:
    """Listens for mounts of nodes. `asked`: client, source, folder and options of each."""

    def __init__(self) -> None:
        self.nodes: Nodes | None = None
        self.asked: list[tuple[str, str, str, str]] = []
        self.refused: list[str] = []
        nfs = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                words = self.rfile.readline().decode().rstrip("\n").split("\t")
                client, source, folder, options = words
                nfs.asked.append((client, source, folder, options))
                address, _, exported = source.rpartition(":")
                answer = nfs.mounted(client, address, exported, folder)
                nfs.refused += [f"{client}: {answer}"] * (answer != "ok")
                self.wfile.write(f"{answer}\n".encode())

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Nfs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def mounted(self, client: str, address: str, exported: str, folder: str) -> str:
        """`ok`, or what mount.nfs4 says."""
        nodes = self.nodes
        assert nodes is not None
        by_address = {nodes.address_of(name): name for name in nodes.running()}
        server = by_address.get(address)
        if server is None:
            return f"Connection timed out for {address}:{exported} on {folder}"
        allowed = exports(nodes, server).get(exported, {})
        options = allowed.get(nodes.address_of(client))
        if options is None:
            return f"mounting {address}:{exported} failed, reason given by server: No such file"
        if not {"rw", "all_squash", "sync"} <= options:
            return f"Permission denied: {sorted(options)}"
        places = [str(min(nodes.pids(name))) for name in (server, client)]
        words = [sys.executable, "-c", ATTACH, *places, exported, folder]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return "ok" if done.returncode == 0 else done.stderr.strip().replace("\n", " ")


def exports(nodes: Nodes, server: str) -> dict[str, dict[str, set[str]]]:
    """The table that exportfs wrote on a node: folder → address → options."""
    root = Path(f"/proc/{min(nodes.pids(server))}/root")
    found: dict[str, dict[str, set[str]]] = {}
    for line in (root / "var/lib/nfs/etab").read_text().splitlines():
        folder, client, options = re.fullmatch(r"(\S+)\s+([^(\s]+)\((.*)\)", line).groups()  # type: ignore[union-attr]
        found.setdefault(folder, {})[client] = set(options.split(","))
    return found


ATTACH = """
import os, sys
from cloudtrain.providers.local import linux

server, client, exported, folder = sys.argv[1:]
NEWNS = 0x20000
libc = linux.libc()


def enter(space, root):
    linux.checked(libc.setns(space, NEWNS), "setns")
    os.fchdir(root)
    os.chroot(".")
    os.chdir("/")


places = [
    [os.open(f"/proc/{pid}/{name}", os.O_RDONLY) for name in ("ns/mnt", "root")]
    for pid in (server, client)
]
enter(*places[0])
cloned = linux.clone(exported)
enter(*places[1])
linux.attach(cloned, folder)
"""
