"""Deletes resources and lists them again until none is left, also of those listed late."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cloudtrain.core import errors, fence, moments
from cloudtrain.core.events import CleanupFailed, NodeDeletionBegun
from cloudtrain.core.parallel import fan_out
from cloudtrain.core.protocols import Journal
from cloudtrain.providers.base.driver import CloudDriver, Resource, Vm
from cloudtrain.providers.base.timing import Timing

ROUNDS = 5
AGAIN = 20
"""How often what is to be deleted is listed again because it may be something else by now."""
IN_USE = 240.0
"""Seconds for a cloud to release what deleted nodes used; it is listed again meanwhile."""
Found = tuple[Sequence[Vm], Sequence[Resource]]


class Teardown:
    """Deletion that reports a resource as gone only after a listing without it."""

    def __init__(self, account: CloudDriver[Any], timing: Timing, journal: Journal) -> None:
        self._account = account
        self._timing = timing
        self._journal = journal
        self._announced: set[str] = set()
        self._seen: dict[str, Vm] = {}
        """VMs known to exist, by id."""
        self._gaps = moments.gaps()
        """Until the last listing."""

    def clear(
        self, find: Callable[[], Found], expected: Mapping[str, float], made: Sequence[Vm] = ()
    ) -> None:
        """Delete until `find` lists nothing and no expected node can appear any more.

        `expected`: node name → time of its request (Unix). While a node may still appear, the
        resources that it may use are kept. `made`: VMs that are known to exist even if they are not
        listed. Raises LeftoverError naming what still exists after several rounds, or at once, in
        the cloud's own words, if the cloud refuses permanently."""
        self._seen = {machine.id: machine for machine in made}
        late = dict(expected)
        begun, rounds, failure = self._timing.clock.monotonic(), 0, None
        again = 0
        while True:
            fence.confirm()
            alive, resources = self._settled(find, late)
            if not alive and not resources:
                return
            outstanding = self._outstanding(late)
            if rounds:
                if self._is_over(rounds, failure, self._timing.clock.monotonic() - begun):
                    raise leftover(alive, resources, failure)
                self._timing.clock.sleep(self._timing.polls.longest * min(rounds, ROUNDS - 1))
            self._announce(alive)
            failure = self._erase(alive, () if outstanding else resources)
            if again < AGAIN and set(map(type, _errors(failure))) == {errors.LookAgainError}:
                again += 1
                continue
            rounds += 0 if outstanding and failure is None else 1

    def _erase(
        self, alive: Sequence[Vm], resources: Sequence[Resource]
    ) -> errors.CloudtrainError | None:
        try:
            with fence.deleting_what_was_seen(self._gaps):
                self._account.delete(alive, resources)
        except (errors.CloudError, errors.NodesError) as error:
            return error
        return None

    def _is_over(self, rounds: int, failure: errors.CloudtrainError | None, took: float) -> bool:
        every = _errors(failure)
        lasting = any(isinstance(each, errors.BusyError) and each.lasting for each in every)
        if lasting or any(
            isinstance(each, errors.PermissionsError | errors.NameTakenError) for each in every
        ):
            return True
        if any(isinstance(each, errors.CredentialsError) for each in every):
            return rounds > 1  # a token may have been renewed meanwhile
        if every and all(isinstance(each, errors.BusyError) for each in every):
            return took >= IN_USE
        return rounds >= ROUNDS

    def _settled(self, find: Callable[[], Found], late: dict[str, float]) -> Found:
        """List what exists. If no node is listed, wait until it is too late for one to appear."""

        def ask() -> Found | None:
            machines, resources = self._found(find)
            alive = [m for m in machines if m.node.state != "gone"]
            for machine in machines:
                late.pop(machine.node.name, None)
            if alive or not self._outstanding(late):
                return alive, resources
            return None

        names = ", ".join(sorted(late))
        what = f"{names}: requested a moment ago and not listed yet"
        found = self._timing.until(ask, within=self._timing.listing, what=what)
        return found if found is not None else self._found(find)

    def _found(self, find: Callable[[], Found]) -> Found:
        """List what exists. If that fails, delete the VMs that are known, or name them in it."""
        gaps = moments.gaps()
        try:
            machines, resources = find()
        except errors.CloudError as error:
            known = tuple(self._seen.values())
            if not known:
                raise
            self._announce(known)
            if self._erase(known, ()) is not None:
                raise leftover(known, (), error, "may still exist and be billed") from error
            self._seen = {}
            raise
        self._gaps = gaps
        self._seen = {m.id: m for m in machines if m.node.state != "gone"}
        return machines, resources

    def _outstanding(self, late: Mapping[str, float]) -> bool:
        return any(
            self._timing.clock.now() - asked < self._timing.listing for asked in late.values()
        )

    def _announce(self, machines: Sequence[Vm]) -> None:
        for machine in machines:
            if machine.id not in self._announced:
                self._announced.add(machine.id)
                self._journal(NodeDeletionBegun(node=machine.node.name))


def _errors(failure: errors.CloudtrainError | None) -> list[BaseException]:
    if isinstance(failure, errors.NodesError):
        return list(failure.failures.values())
    return [] if failure is None else [failure]


def gather(
    works: Mapping[str, Callable[[], object]], failures: dict[str, BaseException], workers: int = 64
) -> None:
    """Run deletions in parallel; what fails goes to `failures`, by name, and stops none."""

    def attempt(what: str) -> None:
        try:
            works[what]()
        except errors.CloudError as error:
            failures[what] = error

    fan_out(list(works), attempt, name=lambda what: what, workers=workers)


Failure = TypeVar("Failure", bound=BaseException)


def roll_back(
    failure: Failure, delete: Callable[[], object], journal: Journal = lambda *_, **__: None
) -> Failure:
    """Call `delete` and return the error to raise: `failure`, with any error of the rollback added
    to its hint, and `left_over` set accordingly."""
    try:
        delete()
    except Exception as trouble:  # noqa: BLE001
        journal(CleanupFailed(text=str(trouble)))
        if isinstance(failure, errors.CloudtrainError):
            text = f"The rollback failed too: {trouble}"
            hint = f"{failure.hint}. {text}" if failure.hint else text
            return failure.copy_with(hint=hint, left_over=True)
    else:
        if (
            isinstance(failure, errors.CloudError) and failure.left_over
        ):  # of a rollback before this one
            return failure.copy_with(left_over=False)
    return failure


def leftover(
    machines: Sequence[Vm],
    resources: Sequence[Resource],
    failure: errors.CloudtrainError | None,
    state: str = "not deleted",
) -> errors.LeftoverError:
    """The error that names each of the leftovers."""
    machines = sorted(machines, key=lambda m: m.node.rank)
    things = [*map(str, machines), *map(str, resources)]
    words = f": {failure.message}" if failure is not None else ""
    hint = (failure and failure.hint) or "run it again to continue"
    runs = any(machine.node.state != "stopped" for machine in machines)
    billed = "instances are billed until they are deleted; " if runs else ""
    return errors.LeftoverError(f"{state}: {', '.join(things)}{words}", hint=f"{billed}{hint}")
