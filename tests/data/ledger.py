"""A rank that steps together with its peers and notes each file that it has finished elsewhere.

Each step takes 0.1 s, prints a line, writes a file and (the chief) a checkpoint, and sends the
file's name and SHA-256 to the ledger, a server outside the nodes. Restores its checkpoint.
"""

import hashlib
import json
import os
import pathlib
import socket
import sys
import time

STEPS, SIZE = int(sys.argv[1]), 20_000

config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
me, life = f"{kind}{index}", time.time_ns()
ledger_host, ledger_port = os.environ["LEDGER"].rsplit(":", 1)
ledger = socket.create_connection((ledger_host, int(ledger_port)))
server = socket.create_server(("", int(config["cluster"][kind][index].rsplit(":", 1)[1])))
peers = [
    a for k, v in config["cluster"].items() for i, a in enumerate(v) if (k, i) != (kind, index)
]
out = []
for address in peers:
    host, port = address.rsplit(":", 1)
    while True:
        try:
            out.append(socket.create_connection((host, int(port)), timeout=5))
            break
        except OSError:
            time.sleep(0.02)
heard = [server.accept()[0] for _ in peers]


def write(path, data):
    path.parent.mkdir(exist_ok=True)
    new = path.with_name("." + path.name + ".new")
    new.write_bytes(data)
    new.rename(path)


checkpoint = pathlib.Path("ckpt", "checkpoint")
step = int(checkpoint.read_text().split("ckpt-")[1].split('"')[0]) if checkpoint.exists() else 0
print(f"{me} begins at step {step}", flush=True)
while step < STEPS:
    try:
        for link in out:
            link.settimeout(None)
            link.sendall(b".")
        if any(link.recv(1) == b"" for link in heard):
            raise ConnectionError
    except ConnectionError:
        print("UnavailableError: Collective ops is aborted by: peer is unhealthy", flush=True)
        sys.exit(1)
    step += 1
    part, data = pathlib.Path("output", f"part-{life}-{step}"), os.urandom(SIZE)
    write(part, data)
    entry = [me, f"{me}/{part.as_posix()}", hashlib.sha256(data).hexdigest(), time.time()]
    ledger.sendall((json.dumps(entry) + "\n").encode())
    if kind == "chief":
        write(checkpoint, f'model_checkpoint_path: "ckpt-{step}"\n'.encode())
    print(f"{me} step {step}", flush=True)
    time.sleep(0.1)
print(f"{me} done", flush=True)
