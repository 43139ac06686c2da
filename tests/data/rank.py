"""A rank of a mirrored cluster, as small as it can be: what TensorFlow does to the outside.

It opens its own port of TF_CONFIG, waits for its peers for ever, steps together with them, writes
a checkpoint, and when a peer is gone exits 1 with TensorFlow's words. Real training is in the
tests marked `tensorflow`; this one takes 0.1 s instead of 6.
"""

import argparse
import json
import os
import pathlib
import selectors
import signal
import socket
import sys
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--steps", type=int, default=5)
arguments.add_argument("--pause", type=float, default=0.02)
arguments.add_argument("--output", type=pathlib.Path, default=pathlib.Path("output"))
arguments.add_argument("--never-start", default="")
arguments.add_argument("--raise-in", default="")
arguments.add_argument("--only-in-first", action="store_true")
options = arguments.parse_args()

config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
me = f"{kind}{index}"
print(f"{me} started, pid {os.getpid()}", flush=True)
while options.never_start == me:
    time.sleep(1)

server = socket.create_server(("", int(config["cluster"][kind][index].rsplit(":", 1)[1])))
peers = [a for k, v in config["cluster"].items() for i, a in enumerate(v) if (k, i) != (kind, index)]
links = selectors.DefaultSelector()
links.register(server, selectors.EVENT_READ)
for address in peers:
    host, port = address.rsplit(":", 1)
    while True:
        try:
            link = socket.create_connection((host, int(port)), timeout=5)
            break
        except OSError:
            time.sleep(0.02)
    links.register(link, selectors.EVENT_READ)
accepted = 0
signal.signal(signal.SIGTERM, lambda *_: None)  # as TensorFlow's mirrored processes do

folder = pathlib.Path("ckpt")
folder.mkdir(exist_ok=True)
latest = folder / "checkpoint"
step = int(latest.read_text().split("ckpt-")[1].split('"')[0]) if latest.exists() else 0
print(f"{me} begins at step {step}", flush=True)
while step < options.steps:
    for key, _ in links.select(timeout=0):
        if key.fileobj is server:
            links.register(server.accept()[0], selectors.EVENT_READ)
        elif not key.fileobj.recv(1):
            links.unregister(key.fileobj)
            if step < options.steps - 1:
                print("UnavailableError: Collective ops is aborted by: peer is unhealthy", file=sys.stderr)
                sys.exit(1)
    if options.raise_in == me and step == 2:
        if not options.only_in_first or not (folder / "raised").exists():
            (folder / "raised").touch()
            raise ValueError("the data is bad")
    step += 1
    if kind == "chief":
        latest.write_text(f'model_checkpoint_path: "ckpt-{step}"\n')
    print(f"{me} step {step}", flush=True)
    time.sleep(options.pause)
options.output.mkdir(parents=True, exist_ok=True)
(options.output / f"{me}.txt").write_text(f"done at {step}\n")
print(f"{me} done", flush=True)
