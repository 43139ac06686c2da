"""A rank of a mirrored cluster, as small as it can be: what TensorFlow does to the outside.

It opens its own port of TF_CONFIG, waits for its peers for ever, steps together with them, writes
a checkpoint, and when a peer is gone exits 1 with TensorFlow's words. Real training is in the
tests marked `tensorflow`; this one takes 0.1 s instead of 6.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import sys
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--steps", type=int, default=5)
arguments.add_argument("--pause", type=float, default=0.02)
arguments.add_argument("--output", type=pathlib.Path, default=pathlib.Path("output"))
arguments.add_argument("--save-every", type=int, default=1, help="steps between checkpoints")
arguments.add_argument("--never-start", default="")
arguments.add_argument("--raise-in", default="")
arguments.add_argument(
    "--quit", nargs=2, default=("", "0"), help="a task that ends before it serves"
)
arguments.add_argument("--alone", type=float, help="trains so many seconds without its peers")
arguments.add_argument(
    "--hold", nargs=2, default=("-1", ""), help="a step, and the file that it waits for"
)
options = arguments.parse_args()

config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
me = f"{kind}{index}"
print(f"{me} started, pid {os.getpid()}", flush=True)
while options.never_start == me:
    time.sleep(1)
if options.quit[0] == me:
    sys.exit(int(options.quit[1]))
if options.alone is not None:
    time.sleep(options.alone)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"{me}.txt").write_text("done alone\n")
    sys.exit(0)

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
signal.signal(signal.SIGTERM, lambda *_: None)  # as TensorFlow's mirrored processes do

folder = pathlib.Path("ckpt")
folder.mkdir(exist_ok=True)
latest = folder / "checkpoint"
step = int(latest.read_text().split("ckpt-")[1].split('"')[0]) if latest.exists() else 0
print(f"{me} begins at step {step}", flush=True)
while step < options.steps:
    try:
        for link in out:
            link.settimeout(None)
            link.sendall(b".")
        if any(link.recv(1) == b"" for link in heard):
            raise ConnectionError
    except ConnectionError:
        print("UnavailableError: Collective ops is aborted by: peer is unhealthy", flush=True)
        sys.exit(1)
    if options.raise_in == me and step == 2:
        raise ValueError("the data is bad")
    while step == int(options.hold[0]) and not pathlib.Path(options.hold[1]).exists():
        time.sleep(0.02)
    step += 1
    if kind == "chief" and step % options.save_every == 0:
        new = folder / ".checkpoint.new"  # as TensorFlow does: it may be killed at any moment
        new.write_text(f'model_checkpoint_path: "ckpt-{step}"\n')
        new.rename(latest)
    print(f"{me} step {step}", flush=True)
    time.sleep(options.pause)
options.output.mkdir(parents=True, exist_ok=True)
(options.output / f"{me}.txt").write_text(f"done at {step}\n")
print(f"{me} done", flush=True)
