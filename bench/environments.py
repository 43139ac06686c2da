"""The environment step of 1 and 8 nodes in one run: pip on each, uv, environments that travel.

Real nodes behind a cloud's stand-in, a real package index (pypiserver) on this machine with the
real wheels of a TensorFlow, and an object store's stand-in. bench/ready.py calls it.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from cloudtrain.playbooks import tensorflow_releases
from tests.standins import stores
from tests.standins.cloud import DESCRIPTIONS, Cloud, running
from tests.standins.image import with_archive
from tests.standins.nodes import Nodes
from tests.standins.stores import Store
from tests.support.package_index import PackageIndex, package_index

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "2.21"
MACHINES = {"aws": "m6i.xlarge", "gcp": "n1-standard-8", "azure": "Standard_D4s_v5"}
HEAD = """
# The environment step: pip or uv on each node, and environments that travel

Load average {load:.1f} at the start, one run of each. A ratio is to pip's in the same column; what
pip installs is the same, an environment and a layer. uv comes from the index in each way but the
first. First cluster: one node creates the environment, packs and uploads it, the others get it from
that node. Later cluster: new nodes, which get it from the store. One package more: `tqdm` in
`setup.packages` of the first cluster. The nodes, the package index, the
store and the client share the cores, so that seconds of 8 nodes are those of their CPU; CPU
seconds of a node are all that its processes took, by /proc.

"""
WAYS = ("pip on each node", "uv on each node", "first cluster", "later cluster", "one package more")
MORE = "tqdm"
SETS: Mapping[str, Mapping[str, Any]] = {
    "TensorFlow": {"tensorflow": RELEASE},
    "keras, numpy, tensorboard": {"packages": ["numpy", "keras", "tensorboard"]},
}
PYTHON = "/usr/bin/python3"
"""The nodes are of this machine's Debian and have its Python."""

UP = """\
import logging, sys
import cloudtrain
logging.basicConfig(format="%(created).3f %(message)s", stream=sys.stdout)
logging.getLogger("cloudtrain").setLevel("DEBUG")
cloudtrain.up(cloudtrain.load(sys.argv[1]))
"""
"""`up` in a process of its own, with the time of every step."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the environment took, on all nodes of a cluster together if nothing else is said."""

    seconds: float
    """From its begin on the first node to its end on the last."""
    node_cpu: float
    """CPU seconds of a node, the mean."""
    busiest_cpu: float
    client_cpu: float
    pages: int
    """Requests for one package's page at the index, of the package with most."""
    files: int
    """Requests for one package's wheel."""


def wheels() -> Path:
    """The wheels that pip takes for TensorFlow on such a node, downloaded once: 350 MB."""
    cache = Path(os.environ.get("CLOUDTRAIN_CACHE") or platformdirs.user_cache_dir("cloudtrain"))
    place = cache / "bench" / f"wheels-{RELEASE}-uv"
    if not place.exists():
        half = place.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        told = subprocess.run([PYTHON, "--version"], capture_output=True, text=True, check=True)
        minor = ".".join(told.stdout.split()[1].split(".")[:2])
        bounds = half / "constraints.txt"
        bounds.write_text("\n".join(tensorflow_releases.constraints(RELEASE)))
        pip = [sys.executable, "-m", "pip", "--quiet", "download", "--only-binary", ":all:"]
        pip += ["--python-version", minor, "--dest", str(half), "--constraint", str(bounds)]
        keras = tensorflow_releases.pinned("tf-keras", tensorflow_releases.minor(RELEASE))
        release = tensorflow_releases.tensorflow(RELEASE, "cpu")
        for wanted in (release, ("--no-deps", keras), ("uv", MORE)):
            subprocess.run([*pip, *wanted], check=True, stdin=subprocess.DEVNULL)
        bounds.unlink()
        half.rename(place)
    return place


def measure(
    name: str, count: int, folder: Path, setup: Mapping[str, Any], *, zstd: bool = True
) -> dict[str, Step]:
    """Each way on new nodes; the store begins empty. Removes all of it afterwards."""
    image = folder / "image"
    with_archive(image)
    tool = shutil.which("zstd")
    if zstd and tool:  # Ubuntu's images have it: initramfs-tools needs it.
        (image / "usr" / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy(tool, image / "usr" / "bin" / "zstd")
    with package_index(wheels(), folder / "requests") as index, stores.fake_gcs() as store:

        def pip_conf(node: str) -> str:
            text = index.pip_conf(node)
            return text if not node.startswith("pip-") else f"{text}constraint = /etc/no-uv.txt\n"

        # The stand-ins' nodes have a uv, which rented machines have not.
        hidden = {"usr/local/bin/uv": "", "etc/no-uv.txt": "uv<0.1\n"}
        nodes = Nodes(
            files=image,
            own_files=lambda node: {"etc/pip.conf": pip_conf(node), **hidden},
        )
        with nodes, running(name, nodes=nodes) as cloud:
            bench = _Bench(cloud, nodes, index, store, folder, count, setup)
            steps = {
                "pip on each node": bench.cluster("pip", cache="off"),
                "uv on each node": bench.cluster("uv", cache="off"),
                "first cluster": bench.cluster("first", cache="auto"),
                "later cluster": bench.cluster("later", cache="auto"),
                "one package more": bench.changed("first", cache="auto"),
            }
            for cluster in ("pip", "uv", "first", "later"):
                bench.down(cluster)
            return steps


@dataclass(frozen=True)
class _Bench:
    cloud: Cloud
    nodes: Nodes
    index: PackageIndex
    store: Store
    folder: Path
    count: int
    setup: Mapping[str, Any]

    def cluster(self, name: str, *, cache: str) -> Step:
        """Nodes get all but the environment first, Debian's python3-venv too.

        They stay until the last cluster was measured: for some minutes ext4 gives out no inode
        that was freed (recently_deleted in its ialloc.c), and looks for others one by one, which a
        new machine's disk never does.
        """
        self._up(name, {"packages": ["six"], "cache": cache})
        return self._measured(name, {**self.setup, "cache": cache})

    def changed(self, name: str, *, cache: str) -> Step:
        """A requirement more, of a cluster that is up."""
        packages = [*self.setup.get("packages", ()), MORE]
        return self._measured(name, {**self.setup, "packages": packages, "cache": cache})

    def _measured(self, name: str, setup: dict[str, Any]) -> Step:
        running = [node for node in self.nodes.running() if node.startswith(f"{name}-")]
        assert len(running) == self.count, running
        before = [self.nodes.cpu_seconds(node) for node in running]
        self.index.forget()
        own = _cpu_of_children()
        said = self._up(name, setup)
        client = _cpu_of_children() - own
        cpu = [self.nodes.cpu_seconds(node) - at for node, at in zip(running, before, strict=True)]
        return Step(
            seconds=_seconds(said),
            node_cpu=statistics.mean(cpu),
            busiest_cpu=max(cpu),
            client_cpu=client,
            pages=self.index.most("page"),
            files=self.index.most("file"),
        )

    def down(self, name: str) -> None:
        self._do("-m", "cloudtrain", "down", name, "--yes")

    def _up(self, name: str, setup: dict[str, Any]) -> str:
        described = DESCRIPTIONS[self.cloud.name]
        machine = MACHINES[self.cloud.name]
        nodes: dict[str, Any] = {"chief": {"machine": machine}}
        if self.count > 1:
            nodes["worker"] = {"machine": machine, "count": self.count - 1}
        values = {
            "name": name,
            "provider": self.cloud.name,
            "project": described.project,
            "placement": list(described.placement),
            "strategy": "multi_worker_mirrored",
            "nodes": nodes,
            "setup": setup,
            "code": {"path": "empty"},
            "train": {"command": "true"},
            "artifacts": {"store": self.store.uri + "/environments"},
        }
        (self.folder / "empty").mkdir(exist_ok=True)
        config = self.folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(values))
        return self._do("-c", UP, str(config))

    def _do(self, *arguments: str) -> str:
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG")}
        own = {"HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**kept, **own, **self.store.environment, **self.cloud.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{arguments}: {done.stderr[-4000:]}{done.stdout[-4000:]}")
        return done.stdout


def _seconds(said: str) -> float:
    """From the step's first line of any node to the first line of the last one about what follows
    it there: the code."""
    begun, ended, inside = [], [], set()
    for line in said.splitlines():
        found = re.match(r"([\d.]+) setup and code: ([\w-]+): (.*)", line)
        if found is None:
            continue
        at, node, text = float(found[1]), found[2], found[3]
        if text.startswith((f"tf{RELEASE}-cpu", "python")) and not text.startswith("python3"):
            begun.append(at)
            inside.add(node)
        elif node in inside:
            ended.append(at)
            inside.remove(node)
    assert not inside, said
    return max(ended) - min(begun)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def section(columns: Mapping[str, Mapping[str, Step]]) -> str:
    """The table, in Markdown: a column for each set of packages and number of nodes."""
    heads = "".join(f" {title} |" for title in columns)
    rows = [f"| |{heads}", "|---|" + "---|" * len(columns)]
    for way in WAYS:
        rows.append(f"| **{way}** |" + " |" * len(columns))
        cells: dict[str, list[str]] = {name: [] for name in _FIGURES}
        for steps in columns.values():
            step, pip = steps[way], steps[WAYS[0]]
            for name, (figure, digits) in _FIGURES.items():
                value, other = getattr(step, figure), getattr(pip, figure)
                ratio = f" · {value / other:.2f} ×" if digits and other else ""
                cells[name].append(f"{value:.{digits}f}{ratio}")
        rows += [f"| {name} | " + " | ".join(found) + " |" for name, found in cells.items()]
    return "\n".join(rows) + "\n"


_FIGURES = {
    "seconds until all nodes have it": ("seconds", 1),
    "CPU seconds of a node, mean": ("node_cpu", 1),
    "CPU seconds of the busiest node": ("busiest_cpu", 1),
    "CPU seconds of the client": ("client_cpu", 1),
    "requests for one package's page": ("pages", 0),
    "requests for one package's wheel": ("files", 0),
}
"""What a row shows: an attribute of Step and its digits; with digits, its ratio to pip's, too."""
