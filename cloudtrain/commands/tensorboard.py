"""`cloudtrain tensorboard`: TensorBoard on this machine over a run's event files."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from cloudtrain.artifacts.event_files import MARK, copy_from_node, copy_landed, event_files
from cloudtrain.artifacts.manifest import read_manifest
from cloudtrain.away.find_run import FoundRun, find_run
from cloudtrain.cluster.session import Handle, Session, open_session, recorded_config
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudtrainError, UsageError
from cloudtrain.core.extras import install_hint
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import CLOCK, Clock, Retry, poll_until
from cloudtrain.core.run_record import Task
from cloudtrain.report.tensorboard_server import EVERY, serving

MOST_AT_ONCE = 16
"""Tasks besides the first that are asked each time; of a larger run, as many in turn."""


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    run: str
    url: str
    live: bool
    """Whether the run goes on, and its event files are copied while it does."""


def tensorboard(
    name: str,
    *,
    config: ClusterConfig | None = None,
    store: str | None = None,
    run: str | None = None,
    port: int = 0,
    on_serving: Callable[[ServedRun], None],
    console: Console,
    clock: Clock = CLOCK,
) -> None:
    """Serve TensorBoard over `run`, or the latest one, on 127.0.0.1 until Ctrl-C. `port` 0 takes a
    free one. The copies are deleted at the end. Raises UsageError without TensorBoard or without
    event files, StoreError."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError("TensorBoard is not installed", hint=install_hint("tensorboard"))
    found = find_run(name, run, config=config, uri=store)
    with (
        tempfile.TemporaryDirectory(prefix="cloudtrain-tensorboard-") as place,
        ExitStack() as stack,
    ):
        copies = Copies(found, Path(place), console)
        stack.callback(copies.close)
        copies.look()
        if not copies.any and not copies.is_live:
            raise UsageError(
                f"run {found.run.id} landed no event files (*{MARK}*)",
                hint="the script decides whether it writes any (keras.callbacks.TensorBoard"
                "('output/logs')); `artifacts.paths`, if set, must match them",
            )
        served = stack.enter_context(serving(Path(place), port))
        if not copies.any:
            console.say("no event files yet; they are shown as soon as the script writes some")
        on_serving(ServedRun(run=found.run.id, url=served.url, live=copies.is_live))

        def again() -> None:
            copies.look()
            served.refuse_end()

        poll_until(again, Retry(pause=EVERY), clock=clock)


class Copies:
    """The run's event files here: landed ones from the store, newer ones from the nodes."""

    def __init__(self, found: FoundRun, folder: Path, console: Console) -> None:
        self._found, self._folder, self._console = found, folder, console
        self._session: Session | None = None
        self._open = ExitStack()
        self._said: set[str] = set()
        self._turn = 0
        self.is_live = found.records is not None and found.run.ended is None
        self._landed = False

    @property
    def any(self) -> bool:
        return next(self._folder.rglob(f"*{MARK}*"), None) is not None

    def close(self) -> None:
        self._open.close()
        self._session = None

    def look(self) -> None:
        """Copy what is new. A live run's faults are reported once each; those of the store of an
        ended run are raised, at first."""
        records = self._found.records
        if records is not None and self.is_live:
            self.is_live = records.run(self._found.run.id).ended is None
        if not self._landed:
            try:
                self.copy_landed()
            except CloudtrainError as error:
                if not self.is_live:
                    raise
                self.say(error.message)
        if self.is_live:
            self.copy_live()
        else:
            self.close()

    def copy_landed(self) -> None:
        store = self._found.store()
        manifest = read_manifest(store, self._found.run.id)
        if manifest is not None:
            files = event_files(manifest.files.values())
            self.report(copy_landed(self._found.run.id, files, store, self._folder))
        self._landed = self.is_live or manifest is None or manifest.complete

    def copy_live(self) -> None:
        try:
            session = self.session()
            pairs = list(self.due(session))
            copied = fan_out(
                pairs,
                lambda pair: copy_from_node(
                    session.config.name,
                    self._found.run.id,
                    pair[0].name,
                    pair[1],
                    session.transport,
                    self._folder,
                ),
                name=lambda pair: pair[1].name,
            )
        except CloudtrainError as error:
            self.say(f"{error.message}; what was copied stays, and the node is asked again")
            self.close()  # the nodes may be others by then
            return
        self.report(tuple(path for left_out in copied for path in left_out))

    def session(self) -> Session:
        assert self._found.records is not None, "only a run on record here is live"
        if self._session is None:
            handle = Handle(recorded_config(self._found.records))
            self._session = self._open.enter_context(open_session(handle, self._console))
        return self._session

    def due(self, session: Session) -> Iterator[tuple[Task, Node]]:
        """The first task, which usually is the one that writes, and the others in turn."""
        assert self._found.records is not None
        tasks = self._found.records.run(self._found.run.id).tasks
        rest = tasks[1:]
        turn = [rest[(self._turn + n) % len(rest)] for n in range(min(len(rest), MOST_AT_ONCE))]
        self._turn += len(turn)
        for task in (*tasks[:1], *turn):
            node = session.node(task.node)
            if node is not None and node.state == "running":
                yield task, node

    def report(self, left_out: tuple[str, ...]) -> None:
        for path in left_out:
            self.say(f"{path} is not shown: the task's event files are too large together")

    def say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._console.warn(text)
