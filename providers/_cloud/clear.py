"""Erase, ask again, until the cloud lists nothing; what it lists late is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cloudtrain.errors import CloudError, CloudtrainError, LeftoverError, NodesError
from cloudtrain.protocols import Journal
from cloudtrain.providers._cloud.account import Account, Machine, Resource
from cloudtrain.providers._cloud.patience import Pace

ROUNDS = 5
Found = tuple[Sequence[Machine], Sequence[Resource]]


class Clearance:
    """Deletes and tells the truth about it."""

    def __init__(self, account: Account[Any], pace: Pace, journal: Journal) -> None:
        self._account = account
        self._pace = pace
        self._journal = journal
        self._announced: set[str] = set()

    def clear(self, find: Callable[[], Found], expected: Mapping[str, float]) -> None:
        """Until `find` finds nothing, and every expected node was seen once or is overdue.

        `expected`: node name → Unix time at which it was asked for. Raises LeftoverError naming
        what still exists after several rounds, with the cloud's own words.
        """
        late = dict(expected)
        failure: CloudtrainError | None = None
        for number in range(ROUNDS):
            alive, resources = self._settled(find, late)
            if not alive and not resources:
                return
            if number:
                self._pace.sleep(self._pace.poll_longest * number)
            self._announce(alive)
            try:
                self._account.erase(alive, resources)
                failure = None
            except (CloudError, NodesError) as error:
                failure = error
        alive, resources = self._settled(find, late)
        if alive or resources:
            raise _leftover(alive, resources, failure)

    def _settled(self, find: Callable[[], Found], late: dict[str, float]) -> Found:
        """What there is now; where that is nothing, once nothing can be listed late any more."""

        def ask() -> Found | None:
            machines, resources = find()
            alive = [m for m in machines if m.node.state != "gone"]
            for machine in machines:
                late.pop(machine.node.name, None)
            if alive or resources or not self._outstanding(late):
                return alive, resources
            return None

        return self._pace.until(ask, within=self._pace.listing) or ((), ())

    def _outstanding(self, late: Mapping[str, float]) -> bool:
        return any(self._pace.now() - asked < self._pace.listing for asked in late.values())

    def _announce(self, machines: Sequence[Machine]) -> None:
        for machine in machines:
            if machine.id not in self._announced:
                self._announced.add(machine.id)
                self._journal("destroy", node=machine.node.name)


@contextmanager
def told_with(failure: BaseException, journal: Journal) -> Iterator[None]:
    """What goes wrong while cleaning up is told with the failure and never hides it."""
    try:
        yield
    except Exception as trouble:  # noqa: BLE001
        journal("left over", text=str(trouble))
        if isinstance(failure, CloudtrainError):
            told = f"Giving back failed too: {trouble}"
            failure.hint = f"{failure.hint}. {told}" if failure.hint else told


def _leftover(
    machines: Sequence[Machine], resources: Sequence[Resource], failure: CloudtrainError | None
) -> LeftoverError:
    machines = sorted(machines, key=lambda m: m.node.rank)
    things = [f"instance {m.node.name} ({m.id}) in {m.place}" for m in machines]
    things += [str(resource) for resource in resources]
    words = f": {failure.message}" if failure is not None else ""
    hint = "run it again; it goes on from here"
    return LeftoverError(
        f"still there: {', '.join(things)}{words}",
        hint=(failure.hint if failure is not None else None) or hint,
    )
