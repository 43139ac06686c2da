"""All errors shown to users, with their exit codes.

CloudtrainError                      exit
├── UsageError                        2     invalid command line or value on it
│   └── UntrustedError                2     a file would use the user's rights, unasked
├── ConfigError                       2     all problems of a file, with line numbers
├── LockedError                       2     another command is working on this cluster
├── LeasedError                       2     another machine is working on this cluster
├── CreatedAnewError                  2     it is another cluster of that name by now
├── CloudError                        1     an error from a cloud, with its own message
│   ├── CapacityError                 3     no capacity for this machine there
│   ├── QuotaError                    3     the account's quota is exceeded
│   ├── CredentialsError              4     missing or invalid credentials
│   ├── PermissionsError              4     access denied
│   ├── CloudConfigError              2     something in the config does not exist or fit there
│   ├── NameTakenError                2     the name is in use by something that is not ours
│   ├── AddressTakenError             1     a requested internal address is in use
│   ├── NotFoundError                 1     not found (any more)
│   ├── BusyError                     1     blocked by another operation or resource
│   ├── LookAgainError                1     what was listed may be another; handled inside
│   ├── RateError                     1     rate limit, after many retries
│   └── TransientError                1     no answer, after many retries
│       └── NotAskedError             6     places that did not answer: their contents are unknown
├── NodeError                         1     a failure on one node
│   ├── NodeUnreachable               1     no answer over SSH
│   ├── NodeGone                      1     its cloud took it while it booted
│   ├── HostKeyMismatch               1     another machine answers at that address
│   └── StepFailed                    1     a playbook step
├── NodesError                        *     all failures of several nodes
├── PreflightError                    1     the run was not started
├── RunFailed                         1     a run's task failed; has the cause
├── StoreError                        5     an error from an artifact store
│   ├── StoreAway                     5     no answer, or a fault of its own, after many retries
│   ├── NoBucketError                 5     its bucket or container does not exist
│   └── DataError                     2     a dataset, or the checkpoint to begin with
├── NotLanded                         5     artifacts are only on the nodes; nodes are kept
└── LeftoverError                     6     resources that still exist after destroy

The exit codes are a public interface: docs/commands.md."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.paths import some

if TYPE_CHECKING:
    from cloudtrain.core.model import Problem

Error = TypeVar("Error", bound="CloudtrainError")
T = TypeVar("T")
SHAPE = (AttributeError, TypeError, LookupError, ValueError, OverflowError)
"""What Python raises for an answer of another shape."""


class CloudtrainError(Exception):
    """Base class. Message and hint are shown, a traceback only with --debug.

    `text` does not repeat `what` it is about: a node, `data.NAME`, a path in a store; the message
    begins with it. `hint` says what to do next."""

    exit_code = 1

    def __init__(self, text: str, *, hint: str | None = None, what: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint
        self.what = what

    @property
    def message(self) -> str:
        return f"{self.what}: {self.text}" if self.what else self.text

    def __str__(self) -> str:
        return self.message

    def copy_with(self: Error, **facts: Any) -> Error:
        """A copy with some attributes changed; a raised error is never modified."""
        error = type(self).__new__(type(self))
        vars(error).update(vars(self))
        for name, value in facts.items():
            setattr(error, name, value)
        error.args = (error.text,)
        return error


def if_told(ask: Callable[[], T], otherwise: T | Callable[[CloudtrainError], T]) -> T:
    """The answer to a question that is asked out of interest, such as a price or the region of a
    bucket: no refusal, silence or answer of another shape fails the command that asks. `otherwise`:
    what holds then, or what makes that of the error."""
    try:
        return ask()
    except CloudtrainError as refusal:
        error = refusal
    except SHAPE as mismatch:
        words = f"{type(mismatch).__name__}: {mismatch}"
        error = CloudError(f"the answer is not what its API describes: {words}")
    return otherwise(error) if callable(otherwise) else otherwise


class UsageError(CloudtrainError):
    exit_code = 2


class UntrustedError(UsageError):
    """A config file would use rights of the user's that the user has not agreed to. `facts` has a
    line for each."""

    def __init__(
        self, message: str, *, hint: str | None = None, facts: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.facts = facts


class ConfigError(CloudtrainError):
    """All problems of one file; `str()` has a line `file:line: field: text` for each."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem], *, hint: str | None = None) -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint=hint)
        self.problems = tuple(problems)


class LockedError(CloudtrainError):
    exit_code = 2


class LeasedError(CloudtrainError):
    """`lease`: ID of the lease that is in the way, for `down --break-lease`."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None, lease: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lease = lease


class CreatedAnewError(CloudtrainError):
    """Something of the cluster is of another generation than what the command has seen."""

    exit_code = 2


Scope = Literal["zone", "region", "account"]
"""How far a refusal reaches: another zone may work, another region may, or none does."""


class CloudError(CloudtrainError):
    """An error from a cloud. The message quotes the cloud's; `code` is the cloud's error code.

    `retry_after`: seconds that the cloud asked to wait. `detail`: text for an administrator that
    goes into the event log only."""

    left_over = False
    """The rollback failed: what was created before this error may still exist and be billed."""
    refusals: tuple[PlaceRefusal, ...] = ()
    """Those of the places that were tried, in their order, if there were several."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        scope: Scope = "account",
        code: str = "",
        retry_after: float | None = None,
        detail: str = "",
        what: str = "",
    ) -> None:
        super().__init__(message, hint=hint, what=what)
        self.detail = detail
        self.scope = scope
        self.code = code
        self.retry_after = retry_after

    @property
    def brief(self) -> str:
        """One line, of several refusals the last: each was reported when its place was tried."""
        last = self.refusals[-1].brief if self.refusals else self.message
        return " ".join(last.split())


@dataclass(frozen=True, kw_only=True)
class PlaceRefusal:
    """A zone, region or candidate in which the nodes were not created, and why."""

    place: str
    error: CloudtrainError

    def __str__(self) -> str:
        return f"{self.place}: {self.error}".replace("\n", "\n  ")

    @property
    def brief(self) -> str:
        brief = self.error.brief if isinstance(self.error, CloudError) else str(self.error)
        return f"{self.place}: {brief}"


class CapacityError(CloudError):
    exit_code = 3
    in_group = False
    """The nodes were requested in a placement group: without it there may be capacity."""
    elsewhere: tuple[str, ...] = ()
    """Zones that have capacity now, where the cloud says so."""
    stuck = False
    """The cloud accepted the request and did not create the node."""


class QuotaError(CloudError):
    exit_code = 3


class CredentialsError(CloudError):
    exit_code = 4


class PermissionsError(CloudError):
    exit_code = 4


class CloudConfigError(CloudError):
    exit_code = 2


class NameTakenError(CloudError):
    exit_code = 2


class AddressTakenError(CloudError):
    pass


class NotFoundError(CloudError):
    pass


class BusyError(CloudError):
    lasting = False
    """Whether it stays so until somebody has done what the hint says."""


class LookAgainError(CloudError):
    pass


class RateError(CloudError):
    pass


class TransientError(CloudError):
    pass


class NoNetworkError(TransientError):
    """Seen before the first request: no retry helps."""


class NotAskedError(TransientError):
    """Zones or regions that could not be queried and may have nodes."""

    exit_code = 6


class NodeError(CloudtrainError):
    """Something failed on one node, named in the message."""

    def __init__(self, node: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, what=node)

    @property
    def node(self) -> str:
        return self.what


class NodeUnreachable(NodeError):
    began = True
    """Whether the command may have been started; False if there was no connection."""
    lasting = False
    """Whether no further try helps before somebody has done what the hint says."""


class NodeGone(NodeError):
    pass


class HostKeyMismatch(NodeError):
    pass


class StepFailed(NodeError):
    """A playbook step on one node; the message ends with the last few of `last_lines`."""

    def __init__(
        self,
        node: str,
        message: str,
        *,
        hint: str | None = None,
        step: str = "",
        step_exit_code: int | None = None,
        last_lines: Sequence[str] = (),
    ) -> None:
        super().__init__(node, message, hint=hint)
        self.step = step
        self.step_exit_code = step_exit_code
        self.last_lines = tuple(last_lines)


class NodesError(CloudtrainError):
    """Failures of several nodes. The exit code is that of the most serious one."""

    def __init__(self, failures: Mapping[str, BaseException], *, hint: str | None = None) -> None:
        lines = [f"{name}: {text_of(name, error)}" for name, error in failures.items()]
        hints = [e.hint for e in failures.values() if isinstance(e, CloudtrainError) and e.hint]
        super().__init__("\n".join(lines), hint=hint or (hints[0] if hints else None))
        self.failures = dict(failures)
        self.exit_code = max(getattr(error, "exit_code", 1) for error in failures.values())


def text_of(what: str, error: BaseException) -> str:
    """The error's text for a reader who has been told what it is about."""
    return error.text if isinstance(error, CloudtrainError) and error.what == what else str(error)


def raise_all(failures: Mapping[str, BaseException]) -> None:
    """Raise the only failure, or a NodesError with all; nothing if there is none."""
    if len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        raise NodesError(failures)


class PreflightError(CloudtrainError):
    """`problems`: texts, each with the nodes of which it is true. `taken`: tasks whose port is
    in use, if nothing else was found."""

    def __init__(
        self,
        text: str = "",
        *,
        hint: str | None = None,
        problems: Sequence[tuple[Collection[str], str]] = (),
        taken: Sequence[str] = (),
    ) -> None:
        super().__init__(text or "\n".join(text for _, text in problems), hint=hint)
        self.problems = tuple(problems)
        self.taken = tuple(taken)

    @property
    def message(self) -> str:
        lines = [f"{some(nodes)}: {text}" for nodes, text in self.problems]
        return "\n".join(lines) or self.text

    @property
    def node(self) -> str:
        """The only node with findings; empty for several."""
        nodes = {node for names, _ in self.problems for node in names}
        return nodes.pop() if len(nodes) == 1 else ""


class RunFailed(CloudtrainError):
    """A run ended without success; `task_exit_code` is that of the causing task, -9 for SIGKILL."""

    def __init__(
        self, message: str, *, hint: str | None = None, task_exit_code: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.task_exit_code = task_exit_code


class StoreError(CloudtrainError):
    exit_code = 5


class StoreAway(StoreError):
    pass


class NoBucketError(StoreError):
    pass


class DataError(StoreError):
    """Input of a run cannot be read: a dataset, or the checkpoint with which it begins. Keeps no
    nodes: what a node holds is landed as ever."""

    exit_code = 2


class NotLanded(CloudtrainError):
    exit_code = 5


class LeftoverError(CloudtrainError):
    exit_code = 6


_NEED_MORE_THAN_A_TEXT = (ConfigError, NodeError, NodesError)


def exit_code(kind: type[Exception]) -> int:
    return kind.exit_code if issubclass(kind, CloudtrainError) else 1


def of_kind(kind: type[Exception], text: str, hint: str | None) -> CloudtrainError:
    """An error of that class with the exit code of `kind`.

    If the class needs more than a text (a node, several failures, a file's problems), the nearest
    class above it that does not."""
    simple = next(
        each
        for each in kind.__mro__
        if each is CloudtrainError
        or (issubclass(each, CloudtrainError) and not issubclass(each, _NEED_MORE_THAN_A_TEXT))
    )
    error: CloudtrainError = simple(text, hint=hint)
    return error.copy_with(exit_code=exit_code(kind))
