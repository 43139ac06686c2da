"""The user's own packages: a layer over the environment of a TensorFlow, named by its content.

The environment below is the same for all who train with that release and build; a changed line of
`setup.packages` makes a new layer in seconds and installs no TensorFlow. A package of the user's
that cannot go with the TensorFlow below is refused; another version of one of its packages lies in
the layer and hides that below, for this layer alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import Protocol

from cloudtrain.config import requirements
from cloudtrain.config.requirements import Delivered
from cloudtrain.core import ship
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.shell import Step, script
from cloudtrain.playbooks import package_index, scripts
from cloudtrain.training.strategies import strategy_of

NO_CACHE, COMPILE = "no-cache.txt", "compile.txt"
"""Marks among the files of a script: keep no downloads, compile what is installed."""

_RECIPE = 1
"""Version of scripts.LAYER."""


class Below(Protocol):
    """The environment below a layer."""

    @property
    def label(self) -> str: ...
    @property
    def install(self) -> tuple[str, ...]: ...
    @property
    def install_alone(self) -> tuple[str, ...]: ...
    @property
    def constraints(self) -> tuple[str, ...]: ...
    @property
    def index(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Everything that a layer is made from."""

    label: str
    below: tuple[str, ...]
    """Requirements of the environment below, for what is installed over it to go with them. None of
    a release that is newer than the tables: it may be made of other ones."""
    install: tuple[str, ...]
    """What the strategy's own library needs."""
    packages: tuple[str, ...]
    """Those of `setup.packages`."""
    own: Delivered
    """The files of `setup.requirements`."""
    constraints: tuple[str, ...]
    lines: tuple[str, ...]
    """`setup.run`, which may install into it: shared only with clusters that have the same."""
    index: tuple[str, str]
    """URL and user of `setup.index`."""
    password: Callable[[], Iterable[bytes]]
    is_changed: bool
    """A later step of the same `setup:` changes it."""

    def folder(self, node: Node, below: str) -> str:
        # By what the user's files say, wherever they are: others with the same share it.
        own = (self.own.apart, *(text for _, text in self.own.texts)) if self.own.main else ()
        mine = (self.install, self.packages, self.constraints, self.index, self.lines)
        text = repr((_RECIPE, PurePosixPath(below).name, mine, own, self.is_changed))
        alone = self.lines or self.is_changed or not node.shared_cache
        cache = node.cache if alone else node.shared_cache
        return f"{cache}/venvs/{self.label}-{digest(text)}"

    def files(self, marks: Iterable[str]) -> Iterable[bytes]:
        """The password, and a tar of the files that the script reads."""
        named: dict[str, tuple[str, ...]] = {
            "below.txt": self.below,
            "install.txt": self.install,
            "constraints.txt": self.constraints,
        }
        if self.packages:
            named["own/setup.packages"] = self.packages
        for path, text in self.own.texts:
            named[f"own/{path}"] = tuple(text.splitlines())
        if self.own.main:
            named["own-file.txt"] = (self.own.main, self.own.apart)
        yield from self.password()
        yield from packed({**named, **dict.fromkeys(marks, ())})

    def step(self, node: Node, below: str, marks: Iterable[str]) -> Step:
        folder = self.folder(node, below)
        return Step(
            name=self.label,
            run=script(
                scripts.LAYER, *self.index, folder, below, ship.START, ship.text("layer.py")
            ),
            unless=script(scripts.LAYER_THERE, folder, below),
            stdin=partial(self.files, marks),
            once_per_host=True,
            shared=folder,
            below=below,
        )


def layer(config: ClusterConfig, below: Below) -> Layer | None:
    """The layer for `setup:`; None if nothing is installed over the environment below."""
    library = strategy_of(config).library if config.setup.tensorflow else None
    given = {requirements.package(line) for line in below.install_alone}
    if config.setup.tensorflow:
        given |= requirements.TENSORFLOW | ({library.package} if library else set())
    named = requirements.named(config) - given
    found = Layer(
        label=f"{below.label}-packages",
        below=() if below.index else requirements.without(below.install, named),
        install=requirements.without(library.needs if library else (), named),
        packages=requirements.without(config.setup.packages, given),
        own=requirements.delivered(config, given),
        constraints=requirements.without(below.constraints, named),
        lines=config.setup.run,
        index=package_index.arguments(config),
        password=partial(package_index.password, config),
        is_changed=library is not None,
    )
    own = found.install, found.packages, found.own.main, found.lines, found.is_changed
    return found if any(own) else None


def packed(named: Mapping[str, Iterable[str]]) -> Iterable[bytes]:
    """Tar of files by their names, with these lines."""
    import tarfile

    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, text in named.items():
            data = "".join(f"{line}\n" for line in text).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return (found.getvalue(),)


def digest(text: str) -> str:
    import hashlib  # slow to import, and `plan` needs none

    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]
