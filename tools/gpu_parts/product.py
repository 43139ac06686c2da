"""The commands of cloudtrain on the machine with the GPU itself, as `provider: hosts`, over an
OpenSSH server of our own on 127.0.0.1."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.gpu_parts.machine import (
    BASE,
    GPUS,
    LIBRARIES,
    OUT,
    PACKAGES,
    PARTS,
    PRODUCT,
    VENV,
    environment,
    figure,
    said,
)

PORT = 22022
HOME = BASE / "home"
SCRIPT = '''"""A user's own script: knows nothing of cloudtrain."""
import os, time
import numpy as np
import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
print("TensorFlow", tf.__version__, gpus, os.environ.get("TF_CONFIG"))
tf.keras.mixed_precision.set_global_policy("mixed_float16" if gpus else "float32")
side, batch, steps = (128, 256, 120) if gpus else (32, 16, 4)
with tf.distribute.MirroredStrategy().scope():
    model = tf.keras.applications.ResNet50(weights=None, input_shape=(side, side, 3), classes=10)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
images = np.random.default_rng(1).standard_normal((batch, side, side, 3)).astype("float32")
labels = (images.mean((1, 2, 3)) > 0).astype("int32")
data = tf.data.Dataset.from_tensors((images, labels)).repeat()
for epoch in range(3):
    began = time.time()
    model.fit(data, epochs=1, steps_per_epoch=steps, verbose=2)
    print(f"FIGURE images_per_second_{epoch} {batch * steps / (time.time() - began):.0f}")
os.makedirs("model", exist_ok=True)
model.save("model/last.keras")
'''
CONFIG = """\
name: first
provider: hosts
strategy: mirrored
nodes: {{chief: {{count: 1{accelerator}}}}}
hosts:
  - {{address: 127.0.0.1, port: {port}, role: chief, user: {user}, key: {key}}}
setup: {{tensorflow: "{release}", python: "{python}"}}
code: {{path: {code}}}
train:
  command: python train.py
artifacts: {{store: "file://{store}", paths: [model]}}
"""
KEYS = """\
import sys
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ed25519
for name in sys.argv[1:]:
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
    open(name, "wb").write(private)
    public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
    open(name + ".pub", "wb").write(public + b"\\n")
"""


def train() -> None:
    """check, check --gpu, up, train, status, down; and what the sampler wrote meanwhile."""
    code, config = BASE / "code", BASE / "first.yaml"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(SCRIPT)
    with server() as key:
        accelerator = f', accelerator: "{kind()}:{GPUS}"' if GPUS else ""
        release = json.loads((PARTS / "about.json").read_text())["release"]
        config.write_text(
            CONFIG.format(
                accelerator=accelerator,
                port=PORT,
                user=getpass.getuser(),
                key=key,
                release=release,
                python="{}.{}".format(*sys.version_info[:2]),
                code=code,
                store=BASE / "store",
            )
        )
        environ = {**os.environ, "HOME": str(HOME), "COLUMNS": "120"}
        environ.pop("XDG_CACHE_HOME", None)
        print("environment:", plant(config, environ))
        verbs = ("trust F --yes", "check F", "check --gpu F", "up F --yes", "train F", "status F")
        for words in (*verbs, "down F --yes"):
            command(words.replace("F", str(config)).split(), environ)
    for path in HOME.rglob("*.metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        figure("metrics_gpu_percent", [row["gpus"][0][0] for row in rows if row["gpus"]])


def command(words: list[str], environ: Mapping[str, str]) -> None:
    began = time.monotonic()
    text = said(sys.executable, "-m", "cloudtrain", *words, seconds=500, env=environ)
    (OUT / f"cloudtrain-{'-'.join(words[:2]).replace('/', '_')}.txt").write_text(text)
    print(f"$ cloudtrain {' '.join(words)}\n{text[-3500:]}", flush=True)
    figure(f"{words[0]}_seconds", round(time.monotonic() - began, 1))


def kind() -> str:
    """The GPU's name in the product's table, by its compute capability and name."""
    from cloudtrain.catalog import gpus

    name = said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()[0]
    fits = [each.kind for each in gpus.GPUS if each.kind.split("-")[0] in name.split()]
    return os.environ.get("GPU_KIND") or (fits[-1] if fits else name)


def plant(config: Path, environ: Mapping[str, str]) -> Path:
    """Put the environment where the product creates it: its step then finds it complete."""
    from cloudtrain.config import load
    from cloudtrain.core.model import Node
    from cloudtrain.playbooks import tensorflow

    node = Node(
        name="first-chief0",
        role="chief",
        index=0,
        state="running",
        address="127.0.0.1",
        internal="127.0.0.1",
    )
    folder = tensorflow.environment_folder(load(config), node)
    place = HOME / str(folder)
    if not place.exists():
        environment()
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(VENV, place, symlinks=True)
        (packages,) = place.glob("lib/python3*/site-packages")
        packages.unlink()
        PACKAGES.rename(packages)
        PACKAGES.symlink_to(packages)
        for mark in (".complete", ".sealed"):
            (place / mark).touch()
            time.sleep(0.1)  # the seal is the newest
    return place


@contextmanager
def server() -> Iterator[Path]:
    """The key of a user who may log in. Of the machine nothing is changed but /run/sshd and, if it
    lacks that, its user."""
    folder = BASE / "sshd"
    folder.mkdir(exist_ok=True)
    own = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ['PATH']}")
    binary = own or str(PRODUCT / "ssh/sshd")
    environ = dict(os.environ) if own else {**os.environ, "LD_LIBRARY_PATH": f"{PRODUCT}/ssh/lib"}
    with suppress(OSError):
        Path("/run/sshd").mkdir(exist_ok=True)
    said("/bin/sh", "-c", "getent passwd sshd || useradd -r -s /usr/sbin/nologin sshd")
    if not (folder / "host").exists():
        paths = [str(folder / name) for name in ("host", "user")]
        subprocess.run([sys.executable, "-c", KEYS, *paths], check=True)
        for key in paths:
            Path(key).chmod(0o600)
    ssh = HOME / ".ssh"
    ssh.mkdir(parents=True, exist_ok=True, mode=0o700)
    (ssh / "authorized_keys").write_text((folder / "user.pub").read_text())
    known = (folder / "host.pub").read_text()
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{PORT} {known}")
    more = f' "LD_LIBRARY_PATH={LIBRARIES.read_text()}"' if LIBRARIES.exists() else ""
    lines = (
        f"ListenAddress 127.0.0.1:{PORT}\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {ssh}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\n"
        "LogLevel ERROR\nSubsystem sftp internal-sftp\n"
        f'SetEnv "HOME={HOME}" "PATH={os.environ["PATH"]}"{more}\n'
        'ForceCommand cd "$HOME" && exec /bin/sh -c "${SSH_ORIGINAL_COMMAND:-exec /bin/sh -l}"\n'
    )
    (folder / "config").write_text(lines)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [binary, "-D", "-e", "-f", str(folder / "config")],
            env=environ,
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        time.sleep(1)
        if process.poll() is not None:
            raise SystemExit(f"sshd: {(folder / 'log').read_text()[-600:]}")
        yield folder / "user"
    finally:
        process.terminate()
        process.wait()
