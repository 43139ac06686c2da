"""Every error that a user can meet, and the exit code that each one ends with.

CloudtrainError                      exit
├── UsageError                        2     the command line or a value on it
├── ConfigError                       2     every problem of a file at once, with line numbers
├── LockedError                       2     another command is at work on this cluster
├── LeasedError                       2     another machine is at work on this cluster
├── CloudError                        1     what a cloud answered, in its own words
│   ├── CapacityError                 3     it has no such machine free there
│   ├── QuotaError                    3     your account may not have so many there
│   ├── CredentialsError              4     who you are is not known
│   ├── PermissionsError              4     you may not do this
│   ├── CloudConfigError              2     what the config asks for does not exist or fit there
│   ├── NameTakenError                2     something that is not ours has that name
│   ├── NotFoundError                 1     it is not there (any more)
│   ├── BusyError                     1     something else has to end or go first
│   ├── RateError                     1     too many calls; still so after many tries
│   └── TransientError                1     it did not answer; still so after many tries
│       └── NotAskedError             6     places that did not: what is there is not known
├── NodeError                         1     one node: what failed there
│   ├── NodeUnreachable               1     no answer over SSH
│   ├── HostKeyMismatch               1     another machine answers at that address
│   └── StepFailed                    1     a playbook step
├── NodesError                        *     several nodes: every failure, none lost
├── PreflightError                    1     the run was not started
├── RunFailed                         1     a run's task failed; holds the cause
├── StoreError                        5     an artifact store refuses
│   └── NoBucketError                 5     its bucket or container does not exist
├── NotLanded                         5     artifacts are only on the nodes; nodes are kept
└── LeftoverError                     6     resources that still exist after destroy

The exit codes are the contract with scripts: docs/commands.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from cloudtrain.model import Problem

Error = TypeVar("Error", bound="CloudtrainError")


class CloudtrainError(Exception):
    """Base of all. `hint` says what to do next; both are shown, a traceback never is."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def copy_with(self: Error, **facts: Any) -> Error:
        """A new error of this class with some facts changed, as one that was raised never is."""
        error = type(self).__new__(type(self))
        vars(error).update(vars(self) | facts)
        error.args = (error.message,)
        return error


class UsageError(CloudtrainError):
    exit_code = 2


class ConfigError(CloudtrainError):
    """All problems of one file; `str()` has one `file:line: field: text` line for each."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem], *, hint: str | None = None) -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint=hint)
        self.problems = tuple(problems)


class LockedError(CloudtrainError):
    exit_code = 2


class LeasedError(CloudtrainError):
    exit_code = 2


Scope = Literal["zone", "region", "account"]
"""How far a refusal reaches: another zone may serve, another region may, or none does."""


class CloudError(CloudtrainError):
    """A cloud's refusal. The message holds its own words; `code` is its own name for it.

    `retry_after` is the seconds that the cloud asked to be left alone for. `detail` is what an
    administrator needs and a screen does not: it goes into the event log.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        scope: Scope = "account",
        code: str = "",
        retry_after: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.detail = detail
        self.scope = scope
        self.code = code
        self.retry_after = retry_after


class CapacityError(CloudError):
    exit_code = 3
    in_group = False
    """Its nodes were asked for close together: elsewhere in the same place there may be room."""


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


class NotFoundError(CloudError):
    pass


class BusyError(CloudError):
    pass


class RateError(CloudError):
    pass


class TransientError(CloudError):
    pass


class NotAskedError(TransientError):
    """Zones or regions that could not be asked, where nodes may be."""

    exit_code = 6


class NodeError(CloudtrainError):
    """Something failed on one node, named in the message."""

    def __init__(self, node: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{node}: {message}", hint=hint)
        self.node = node


class NodeUnreachable(NodeError):
    began = True
    """Whether what was to be run may have begun: False where no connection could be had."""


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
    """Failures of several nodes side by side. The exit code is the most serious one's."""

    def __init__(self, failures: Mapping[str, BaseException], *, hint: str | None = None) -> None:
        lines = [
            str(error) if str(error).startswith(f"{name}:") else f"{name}: {error}"
            for name, error in failures.items()
        ]
        hints = [e.hint for e in failures.values() if isinstance(e, CloudtrainError) and e.hint]
        super().__init__("\n".join(lines), hint=hint or (hints[0] if hints else None))
        self.failures = dict(failures)
        self.exit_code = max(getattr(error, "exit_code", 1) for error in failures.values())


class PreflightError(CloudtrainError):
    """`node`: the one where all that was found is; empty where they are several. `taken`: tasks
    whose port another program has, where nothing else was found."""

    def __init__(
        self, message: str, *, hint: str | None = None, node: str = "", taken: Sequence[str] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.node = node
        self.taken = tuple(taken)


class RunFailed(CloudtrainError):
    """A run ended without success; `task_exit_code` is the causing task's own, -9 for SIGKILL."""

    def __init__(
        self, message: str, *, hint: str | None = None, task_exit_code: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.task_exit_code = task_exit_code


class StoreError(CloudtrainError):
    exit_code = 5


class NoBucketError(StoreError):
    pass


class NotLanded(CloudtrainError):
    exit_code = 5


class LeftoverError(CloudtrainError):
    exit_code = 6
