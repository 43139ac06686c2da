"""Prepares nodes for a run: the playbooks on all of them side by side, then the code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import PurePath
from typing import Any, cast

from cloudtrain.artifacts.inventory import Stop
from cloudtrain.cluster.session import Session, is_of_the_nodes_cloud
from cloudtrain.config import requirements
from cloudtrain.core import errors, moments
from cloudtrain.core.cloud import facts_of
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.image_name import ImageName, image_name
from cloudtrain.core.model import Node
from cloudtrain.core.run_record import Run
from cloudtrain.core.shell import Step
from cloudtrain.core.store_kinds import is_on_this_machine
from cloudtrain.datasets.exchange import FileSigner, NoRoute
from cloudtrain.playbooks import (
    base,
    code,
    code_packages,
    containers,
    gpu_check,
    horovod,
    nvidia,
    tensorflow,
)
from cloudtrain.playbooks.apply import Sharing, apply
from cloudtrain.setup import programs, stored
from cloudtrain.setup.programs import (
    PROBE,
    ArchiveServer,
    EnvironmentArchive,
    OnNode,
    Say,
    StorePlace,
    key_of,
)
from cloudtrain.setup.shared_folder import share_folder


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """State of the nodes: the code's commit or digest, and the image with its digest if any."""

    code: str
    image: str = ""


def prepare_nodes(session: Session, run: Run | None = None) -> Prepared:
    """Install what `setup:` and `code:` ask for on every node. `run`: an active one, whose code and
    image are used even if its branch, folder or tag has changed since."""
    source = code.resolve(session.config, run.code if run else None)
    image = pinned_image(session, run)
    note = tensorflow.keras_note(session.config)
    for text in filter(None, (note, *requirements.left_out_notes(session.config))):
        session.console.say(text)
    said = code.keys_note(source)
    if said:
        session.console.warn(said)

    login = login_of_nodes(session, image)

    def steps(node: Node) -> tuple[Step, ...]:
        return (
            *base.steps(session.config, node),
            *base.python(),
            *nvidia.steps(session.config, node),
            *tensorflow.steps(session.config, node),
            *horovod.steps(session.config, node),
            *gpu_check.steps(session.config, node),
            *containers.steps(session.config, node, image, login),
            *code.steps(source, session.config.name),
            *code_packages.steps(session.config, node, source.digest),
        )

    with (
        session.console.stage("setup and code", len(session.nodes)) as stage,
        shared_environments(session) as sharing,
    ):
        say = session.console.say
        try:
            apply(steps, session.nodes, session.transport, stage, sharing=sharing, note=say)
        except (errors.StepFailed, errors.NodesError) as error:
            line = requirements.line_named(session.config, str(error))
            hint = "; ".join(filter(None, (line, error.hint)))
            raise error.copy_with(hint=hint or None) if line else error from None
    share_folder(session)
    packed = code.keys_note(source)
    if packed != said:
        session.console.warn(packed)
    return Prepared(code=source.digest, image=image.recorded if image else "")


def login_of_nodes(session: Session, image: ImageName | None) -> Callable[[], list[bytes]]:
    """Stdin of a pull: a login for the image's registry, made once for all nodes, which ask side by
    side, and only if one of them lacks the image. Raises CloudError when it is called."""
    asking = threading.Lock()

    @cache
    def made() -> bytes:
        from cloudtrain.stores.registry import login_file, login_for  # rarely needed

        if image is None:
            return b""
        return login_file(image, login_for(image, *containers.login_of(session.config)))

    def login() -> list[bytes]:
        with asking:
            return [made()]

    return login


def pinned_image(session: Session, run: Run | None) -> ImageName | None:
    """The image with its digest: that of the run, of the config, or of the registry now. Raises
    CloudError."""
    if run is not None:
        return image_name(run.image) if run.image else None
    wanted = containers.image_of(session.config)
    if wanted is None or wanted.digest:
        return wanted
    from cloudtrain.stores.registry import Registry, login_for  # rarely needed

    try:
        login = login_for(wanted, *containers.login_of(session.config))
        return wanted.pinned(Registry(image=wanted, login=login).digest())
    except (errors.TransientError, errors.RateError) as error:
        runs = [image_name(each.image) for each in session.records.runs() if each.image]
        before = [each for each in runs if each.pinned("") == wanted]
        if not before:
            raise
        session.console.warn(f"{error.message}: going on with {before[-1]} of the last run")
        return before[-1]


@contextmanager
def shared_environments(session: Session) -> Iterator[Sharing | None]:
    """Let nodes get environments from each other and from the store, unless `setup.cache` is off.
    Nodes on this machine share them without it."""
    config = session.config
    if facts_of(config.provider).on_this_machine:
        yield _CreatedApart(session)
        return
    if config.setup.cache == "off":
        yield None
        return
    if tensorflow.credentials_in_packages(config):
        session.console.say(
            "setup.cache: each node creates its own environment, as packages are named by a URL "
            "with credentials"
        )
        yield None
        return
    sharing = SharedEnvironments(session)
    try:
        yield sharing
    finally:
        sharing.close()


@dataclass(frozen=True)
class _CreatedApart:
    """Has shared environments created where no node can write, by `provider: local`."""

    session: Session

    def provide(
        self, node: Node, step: Step, create: Callable[[Node], None], say: Callable[[str], None]
    ) -> bool:
        for_all, folder = PurePath(node.shared_cache, "venvs"), str(step.shared)
        if not node.shared_cache or not PurePath(folder).is_relative_to(for_all):
            create(node)
            return True
        session, provider = self.session, cast(Any, self.session.provider)
        with provider.builder(session.plan, session.identity, node, folder, step.below) as builder:
            if builder is not None:
                create(builder)
        return True

    def interrupt(self) -> None:
        """Nothing waits here but for a lock."""


# ── One node of a cluster creates each environment, the others get what it has created ────────
# Nodes that get it ask no package index. Whatever goes wrong on the way, a node creates its own: an
# archive may save time, and never fails an `up`.


BUILDERS = 2
"""Nodes that try to create an environment; if both fail, so would all."""


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Source from which nodes get the archive."""

    archive: EnvironmentArchive
    signer: FileSigner
    place: str
    server: ArchiveServer | None = None


@dataclass
class _Group:
    """Nodes that can use each other's environment. `builder` creates it, or has."""

    key: str
    folder: str
    """On every one of them."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    builder: str = ""
    source: _Source | None = None
    looked: bool = False
    alone: bool = False
    """Nobody gets it from another."""
    failures: int = 0

    @property
    def label(self) -> str:
        """Its name without the digest: `tf2.21-cpu`."""
        return self.folder.rpartition("/")[2].rpartition("-")[0]


class SharedEnvironments:
    """Environments of one `up` or `train`; close it once all nodes have theirs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stop = Stop()
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._servers: list[ArchiveServer] = []
        self._uploads: list[threading.Thread] = []

    def interrupt(self) -> None:
        """End all waiting, from another thread."""
        self._stop.set()

    def provide(self, node: Node, step: Step, create: Callable[[Node], None], say: Say) -> bool:
        """Get or create the environment of the step on the node. `create` creates it there, and
        raises what then ends the node's setup. False if it was not tried, since it has failed on
        other nodes."""
        folder = str(step.shared)
        key = self._key(node, folder)
        if key is None:
            create(node)
            return True
        with self._lock:
            group = self._groups.setdefault(key, _Group(key=key, folder=folder))
        while True:
            source = self._turn(group, node, say)
            if source is None:
                if group.failures >= BUILDERS:
                    return False
                source = self._from_store(group)
                if source is None:
                    self._create(group, node, create, say)
                    return True
                self._offer(group, source)
            if self._fetched(group, source, node, say):
                return True
            if source.server is not None:
                create(node)
                return True

    def close(self) -> None:
        """Wait for the uploads, end serving, and delete the archives on nodes. A server deletes
        what it has served, which until then may be uploading."""
        if any(thread.is_alive() for thread in self._uploads):
            self._session.console.say("storing the environment for later clusters")
        for thread in self._uploads:
            thread.join()
        for server in self._servers:
            server.close()
            programs.remove(server.packed, self._session.transport)

    def _key(self, node: Node, folder: str) -> str | None:
        try:
            answer = self._session.transport.ask(node, PROBE)
        except errors.CloudtrainError:
            return None
        facts = answer.stdout.decode("utf-8", "surrogateescape").splitlines()
        return key_of(facts, folder) if answer.exit_code == 0 and len(facts) == 6 else None

    def _turn(self, group: _Group, node: Node, say: Say) -> _Source | None:
        """Wait until there is a source; None if this node creates it, or if nobody shall."""
        with group.changed:
            while group.source is None and group.builder and not group.alone:
                say(f"waiting for {group.builder}, which creates it")
                group.changed.wait(0.5)
                self._stop.check()
            if group.source is None and group.failures < BUILDERS:
                group.builder = node.name
            return group.source

    def _create(self, group: _Group, node: Node, create: Callable[[Node], None], say: Say) -> None:
        """Create it here, then let the others get it."""
        try:
            create(node)
        except BaseException:
            with group.changed:
                group.failures += 1
                group.builder = ""
                group.changed.notify_all()
            raise
        self._offer(group, self._packed_source(group, node, say))

    def _offer(self, group: _Group, source: _Source | None) -> None:
        with group.changed:
            group.source, group.alone = source, source is None
            group.changed.notify_all()

    def _from_store(self, group: _Group) -> _Source | None:
        """The archive that this machine knows in the store; looked for once."""
        if group.looked or not self._stores():
            return None
        group.looked = True
        archive = stored.archive_for(group.key, self._place)
        if archive is None:
            return None
        try:
            signer = stored.StoreSigner(archive, stored.archive_data(self._place, archive))
        except errors.CloudtrainError:
            return None  # storing the next one says why
        return _Source(archive=archive, signer=signer, place="the store")

    def _fetched(self, group: _Group, source: _Source, node: Node, say: Say) -> bool:
        """Get it from the source; False, with a warning, if that failed."""
        transport = self._session.transport

        def tell(text: str) -> None:
            say(f"from {source.place}: {text}")

        try:
            if source.server is not None:
                source.server.start()
            programs.fetch(
                node, group.folder, source.archive, source.signer, transport, self._stop, tell
            )
        except errors.NotLanded:
            raise
        except (errors.CloudtrainError, NoRoute) as error:
            self._stop.check()
            self._session.console.warn(
                f"{node.name}: cannot get {group.label} from {source.place}, so it is created "
                f"there: {error}"
            )
            with group.changed:
                if group.source is source and source.server is None:
                    group.source, group.builder = None, ""
                    group.changed.notify_all()
            return False
        if source.server is None:
            stored.mark_used(source.archive, moments.now())
        return True

    def _packed_source(self, group: _Group, node: Node, say: Say) -> _Source | None:
        """Pack what this node has created, for the other nodes and for the store."""
        peers = {each.storage for each in self._session.nodes} - {node.storage}
        if not peers and not self._stores():
            return None
        transport = self._session.transport
        say("packing it for other nodes")
        try:
            packed = programs.pack(
                node, group.folder, group.key, group.label, transport, self._stop, say
            )
        except errors.NotLanded:
            raise
        except errors.CloudtrainError as error:
            self._session.console.warn(f"{error}: other nodes create {group.label} themselves")
            return None
        server = ArchiveServer(packed=packed, transport=transport, stop=self._stop)
        self._servers.append(server)
        if self._stores():
            thread = threading.Thread(target=self._store, args=(packed,), daemon=True)
            self._uploads.append(thread)
            thread.start()
        return _Source(archive=packed.archive, signer=server, place=node.name, server=server)

    def _stores(self) -> bool:
        """True if nodes can read and write the store with signed requests."""
        store = self._session.store
        return store.presigner is not None and not is_on_this_machine(store.uri)

    def _store(self, packed: OnNode) -> None:
        session, place = self._session, self._place
        try:
            stored.store_archive(packed, place, session.store, session.transport, self._stop)
        except errors.CloudtrainError as error:
            session.console.warn(
                f"{packed.archive.label} is not stored for later clusters: {error}"
            )

    @property
    def _place(self) -> StorePlace:
        config, uri = self._session.config, self._session.store.uri
        return StorePlace(
            uri=uri,
            endpoint=config.endpoints.storage,
            project=config.project if is_of_the_nodes_cloud(uri, config) else None,
        )
