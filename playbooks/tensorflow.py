"""The `tensorflow` playbook: a virtual environment per host, and the user's own lines."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from math import ceil
from typing import Literal

from cloudtrain.catalog import cuda
from cloudtrain.config import requirements
from cloudtrain.core import paths, ship
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import ClusterConfig, Node, Problem
from cloudtrain.core.shell import Step, command, script
from cloudtrain.playbooks import nvidia, scripts, tensorflow_releases, user_packages
from cloudtrain.playbooks.user_packages import digest
from cloudtrain.training.strategies import strategy_of

Keras = Literal["legacy", "3", "bundled"]

KERAS_3 = (2, 16)
"""The first release with Keras 3, and without tf.estimator
(github.com/tensorflow/tensorflow/releases/tag/v2.16.1)."""


def steps(config: ClusterConfig, node: Node) -> tuple[Step, ...]:
    """Steps for `setup:` on this node. Raises ConfigError for unreadable requirements."""
    wanted = _wanted(config, node)
    top = environment_folder(config, node)
    own = tuple(_own_step(config, node, line, top) for line in config.setup.run)
    if wanted is None:
        return own
    facts, python, folder = facts_of(config.provider), wanted.python, wanted.folder(node)
    marks = {
        # A cache would store everything a second time, on a rented disk.
        user_packages.NO_CACHE: not facts.takes_hosts,
        # uv compiles nothing, and local nodes may not write into what they share.
        user_packages.COMPILE: facts.on_this_machine,
    }
    given = tuple(name for name, is_given in marks.items() if is_given)
    versions = (python.first, python.last, python.debian_package, " ".join(wanted.index))
    environment = Step(
        name=wanted.label,
        run=script(scripts.ENVIRONMENT, folder, *versions, *python.candidates),
        unless=script(scripts.ENVIRONMENT_THERE, folder),
        stdin=partial(wanted.files, given),
        once_per_host=True,
        shared=folder,
    )
    layer = user_packages.layer(config, wanted)
    return (environment, *([layer.step(node, folder, given)] if layer else []), *own)


def bin_folder(config: ClusterConfig, node: Node) -> str | None:
    """Folder of the environment's `python`, to be first in PATH; None if `setup:` needs no
    environment. As `node.cache`, absolute or relative to the user's home."""
    folder = environment_folder(config, node)
    return f"{folder}/bin" if folder else None


def environment_folder(config: ClusterConfig, node: Node) -> str | None:
    """The environment that clusters and nodes of a host share; None if `setup:` needs none."""
    wanted = _wanted(config, node)
    if wanted is None:
        return None
    layer = user_packages.layer(config, wanted)
    return layer.folder(node, wanted.folder(node)) if layer else wanted.folder(node)


def base_folder(config: ClusterConfig, node: Node) -> str | None:
    """The environment of the TensorFlow alone, which lies below the user's own packages."""
    wanted = _wanted(config, node)
    return wanted.folder(node) if wanted else None


def environment(config: ClusterConfig, node: Node) -> Mapping[str, str]:
    """Variables that every task needs for this setup."""
    return {"TF_USE_LEGACY_KERAS": "1"} if keras_choice(config) == "legacy" else {}


def credentials_in_packages(config: ClusterConfig) -> bool:
    """True if a line names a URL with a user or password, which pip writes into environments
    (direct_url.json, https://packaging.python.org/en/latest/specifications/direct-url/)."""
    lines = (*config.setup.packages, *requirements.lines(config))
    return any(re.search(r"://[^/\s@]+@", line) for line in lines)


def keras_choice(config: ClusterConfig) -> Keras:
    """`legacy`, `3`, or `bundled`: as the release has it, always so before 2.16."""
    version = config.setup.tensorflow
    if version is None or tensorflow_releases.release(version) < KERAS_3:
        return "bundled"
    if config.setup.keras == "auto":
        return "3" if strategy_of(config).keras_3 == "works" else "legacy"
    return config.setup.keras


def keras_note(config: ClusterConfig) -> str | None:
    """One line for the user if cloudtrain chose for them."""
    if config.setup.keras != "auto" or keras_choice(config) != "legacy":
        return None
    return (
        f"keras: auto means legacy here (tf_keras, TF_USE_LEGACY_KERAS=1): "
        f"model.fit of Keras 3 does not work with {config.strategy}"
    )


def python_note(config: ClusterConfig) -> str | None:
    """One line on the Python that `auto` means on this machine; None if a node chooses it."""
    version = config.setup.tensorflow
    if version is None or config.setup.python != "auto":
        return None
    if not facts_of(config.provider).on_this_machine or problems(config):
        return None
    first, last = _pythons(config, version)
    running = running_python()
    if _number(first) <= _number(running) <= _number(last):
        return f"python: auto means {running} here, which runs cloudtrain"
    return (
        f"python: auto means the newest of {first} to {last} here: TensorFlow {version} has no "
        f"wheels for {running}, which runs cloudtrain"
    )


def running_python() -> str:
    return "{}.{}".format(*sys.version_info[:2])


def newer_note(config: ClusterConfig) -> str | None:
    """One line if the tables do not know the release."""
    version = config.setup.tensorflow
    if version is None or not tensorflow_releases.VERSION.fullmatch(version):
        return None
    if not tensorflow_releases.is_newer(version):
        return None
    return (
        f"TensorFlow {version} is newer than the table of {tensorflow_releases.READ}: Python and "
        "CUDA are chosen on the node, by what the package index has; nothing bounds their versions"
    )


def keras_warning(config: ClusterConfig) -> str | None:
    """One line if the user's choice fails."""
    nodes = sum(group.count for role, group in config.nodes.items() if role != "evaluator")
    if config.setup.keras != "3" or nodes < 2 or strategy_of(config).keras_3 != "fit_fails":
        return None
    return (
        f"keras: 3: model.fit of Keras 3 does not work with {config.strategy} over several "
        "nodes (keras#20585, keras#18624), only custom training loops do"
    )


def problems(config: ClusterConfig) -> tuple[Problem, ...]:
    """Combinations in `setup:` that cannot be installed, found before anything is created."""
    version, python = config.setup.tensorflow, config.setup.python
    if version is None:
        return ()
    found = partial(Problem, file=config.source, line=None)
    try:
        number = tensorflow_releases.release(version)
    except ValueError as error:
        return (found(field="setup.tensorflow", text=str(error)),)
    unknown = tensorflow_releases.unknown(version)
    if unknown is not None:
        return (found(field="setup.tensorflow", text=unknown),)
    first, last = tensorflow_releases.pythons(version)
    text: dict[str, str] = {}
    if _is_version(python) and not _number(first) <= _number(python)[:2] <= _number(last):
        text["setup.python"] = f"TensorFlow {version} has wheels for Python {first} to {last}"
    if config.train.tf_config == "estimator" and number >= KERAS_3:
        text["train.tf_config"] = (
            f'TensorFlow {version} has no tf.estimator: set `setup.tensorflow: "2.15"`'
        )
    oldest, newest = tensorflow_releases.FOR_TPUS
    if strategy_of(config).tpus and is_cloud(config.provider) and not oldest <= number <= newest:
        releases = " and ".join("{}.{}".format(*each) for each in (oldest, newest))
        text["setup.tensorflow"] = (
            f"of the releases that PyPI has for TPUs, only {releases} install: use one of them, or "
            "no `setup.tensorflow` and an `image:` that has it, such as tpu-vm-tf-2.18.0-pjrt"
        )
    if config.setup.keras == "3" and number < KERAS_3:
        text["setup.keras"] = f"TensorFlow {version} has no Keras 3, which requires 2.16 or later"
    return tuple(found(field=name, text=why) for name, why in text.items())


_RECIPE = 2
"""Version of scripts.ENVIRONMENT; increase it to recreate all environments."""


@dataclass(frozen=True, kw_only=True)
class _Python:
    """Names or paths to try in order, accepted versions, and where else to get a Python."""

    candidates: tuple[str, ...]
    first: str
    last: str
    debian_package: str = ""


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """Everything that the environment of a TensorFlow is made from, without the user's packages.
    Two equal ones are one environment on a host."""

    label: str
    python: _Python
    install: tuple[str, ...] = ()
    install_alone: tuple[str, ...] = ()
    """Packages to install without their dependencies."""
    constraints: tuple[str, ...] = ()
    cuda: tuple[str, ...] = field(default=(), repr=False)
    """Packages to install first; the others keep these versions unless they need other ones."""
    index: tuple[str, ...] = field(default=(), repr=False)
    """Questions for the package index: the version, its package, and packages that come in the
    same minor versions. Empty if the tables know the release."""

    def folder(self, node: Node) -> str:
        text = repr((_RECIPE, self, self.cuda))
        return f"{node.shared_cache or node.cache}/venvs/{self.label}-{digest(text)}"

    def files(self, marks: Iterable[str] = ()) -> Iterable[bytes]:
        """Tar of the files that the script reads, and of empty ones as `marks` for it."""
        return user_packages.packed(
            {
                "install.txt": self.install,
                "install-alone.txt": self.install_alone,
                "constraints.txt": self.constraints,
                **({"cuda.txt": self.cuda} if self.cuda else {}),
                **dict.fromkeys(marks, ()),
            }
        )


def _wanted(config: ClusterConfig, node: Node) -> _Wanted | None:
    setup, version = config.setup, config.setup.tensorflow
    if setup.image is not None:
        return None  # its packages are a matter of playbooks/containers
    if version is not None:
        return _with(version, config, node)
    own = setup.packages or setup.requirements or setup.install
    if not own and setup.python == "auto":
        return None
    return _Wanted(label="python", python=_python(config, _ANY_PYTHON))


def _with(version: str, config: ClusterConfig, node: Node) -> _Wanted:
    legacy = keras_choice(config) == "legacy"
    gpus = nvidia.wanted(config, node)
    build: tensorflow_releases.Build = "cuda" if gpus else "cpu"
    if strategy_of(config).tpus and is_cloud(config.provider):
        build = "tpus"
    kind = gpus.kind if gpus else ""
    # For every strategy, so that one environment serves all of them; `environment` chooses.
    has_both = tensorflow_releases.release(version) >= KERAS_3
    keras = tensorflow_releases.pinned("tf-keras", tensorflow_releases.minor(version))
    # TensorFlow finds its CUDA beside itself (RPATH), never in a layer above it.
    theirs = [
        line.partition(" --hash")[0].strip()
        for line in (requirements.lines(config) if gpus else ())
        if requirements.package(line).startswith("nvidia-")
    ]
    libraries = cuda.pins(version, kind) if gpus else ()
    named = {requirements.package(line) for line in theirs}
    bounds = (*tensorflow_releases.constraints(version), *cuda.bounds(version, kind))
    index: tuple[str, ...] = ()
    if tensorflow_releases.is_newer(version):
        package = "tensorflow-cpu" if build == "cpu" else "tensorflow"
        index = (version, package, "tensorboard", *(["tf-keras"] if legacy else []))
    return _Wanted(
        label=f"tf{version}-{build}",
        python=_python(config, _pythons(config, version)),
        install=(*tensorflow_releases.tensorflow(version, build), *theirs),
        install_alone=(keras,) if legacy or (has_both and not index) else (),
        constraints=requirements.without(bounds, named),
        cuda=requirements.without(libraries, named),
        index=index,
    )


def _pythons(config: ClusterConfig, version: str) -> tuple[str, str]:
    """First and last Python for the release and the strategy's own library."""
    first, last = tensorflow_releases.pythons(version)
    library = strategy_of(config).library
    return first, min(last, library.python, key=_number) if library else last


_ANY_PYTHON = ("3.6", "3.99")


def _python(config: ClusterConfig, supported: tuple[str, str]) -> _Python:
    wanted, (first, last) = config.setup.python, supported
    may_install = not facts_of(config.provider).on_this_machine  # never on the user's own machine
    if wanted != "auto" and not _is_version(wanted):
        return _Python(candidates=(wanted,), first=first, last=last)
    if wanted != "auto":
        minor = ".".join(wanted.split(".")[:2])
        package = f"python{minor}-venv" if may_install else ""
        return _Python(
            candidates=(f"python{minor}", "python3"),
            first=wanted,
            last=wanted,
            debian_package=package,
        )
    newest_first: tuple[str, ...] = ()
    if supported != _ANY_PYTHON:
        minors = range(_number(last)[1], _number(first)[1] - 1, -1)
        newest_first = tuple(f"python3.{minor}" for minor in minors)
        if not may_install and _number(first) <= sys.version_info[:2] <= _number(last):
            # The Python that runs this program: by its path, too, if PATH lacks its name.
            name, path = f"python{running_python()}", getattr(sys, "_base_executable", None)
            own = (name,) if shutil.which(name) else (path or sys.executable, name)
            newest_first = tuple(dict.fromkeys((*own, *newest_first)))
    return _Python(
        candidates=(*newest_first, "python3"),
        first=first,
        last=last,
        debian_package="python3-venv" if may_install else "",
    )


def _is_version(python: str) -> bool:
    return python.replace(".", "").isdigit() and "." in python


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _own_step(config: ClusterConfig, node: Node, line: str, folder: str | None) -> Step:
    """Run a line of `setup.run` once per cluster and node, with the environment first in PATH. It
    is run again in a new environment, as it may install into it, and on each machine of a shared
    home."""
    of = digest(repr((folder, line, node.host) if node.home else (folder, line)))
    done, limit = f"{paths.cluster_folder(config.name)}/setup/{of}", ceil(config.setup.timeout)
    run = ship.text("task_processes.sh") + ship.text("setup_line.sh") + scripts.OWN_LINE_DONE
    return Step(
        name=f"setup.run: {line if len(line) <= 60 else line[:57] + '...'}",
        run=script(run, done, folder or "", line, str(limit), f"{config.name}/{of}"),
        unless=command("test", "-f", done),
        once_per_host=True,  # two at once would compete for apt's lock or one environment
        timeout=limit + 120.0,
    )
