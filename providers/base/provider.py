"""Provider for any cloud: creates, lists, deletes and sweeps nodes through the cloud's driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic

from cloudtrain.core import errors, events, fence, moments
from cloudtrain.core.model import ClusterConfig, Holding, Identity, MachineType, Node, Owner, Plan
from cloudtrain.core.partial_list import (
    NotAsked,
    PartialList,
    SpotEvidence,
    Whereabouts,
    evidence_text,
)
from cloudtrain.core.protocols import (
    Allowance,
    Expected,
    Finding,
    Journal,
    MachineFacts,
    Principal,
    WritesPolicies,
)
from cloudtrain.providers.base.boot import has_end_command
from cloudtrain.providers.base.create import (
    Creation,
    can_retry_without_placement_group,
    goes_on,
    lacks_room,
    of_all,
    refusal_covers,
)
from cloudtrain.providers.base.driver import (
    CloudDriver,
    Location,
    NetworkT,
    Resource,
    Tell,
    Vm,
)
from cloudtrain.providers.base.ends import Ends
from cloudtrain.providers.base.labels import refuse_other_owner
from cloudtrain.providers.base.seen import (
    ClusterSearch,
    DeletionSearch,
    SeenGenerations,
    created_anew,
    new_generation,
    raise_if_not_asked,
)
from cloudtrain.providers.base.teardown import Found, Teardown, roll_back
from cloudtrain.providers.base.timing import TIMING, Timing


class CloudProvider(Generic[NetworkT]):
    """Provider that uses a cloud driver. `caller` returns the CIDR from which SSH is allowed,
    "" for none."""

    def __init__(
        self, account: CloudDriver[NetworkT], *, caller: Callable[[], str], timing: Timing = TIMING
    ) -> None:
        self.name: str = account.name
        self._account = account
        self._caller = caller
        self._timing = timing
        self._ends = Ends(account, timing)
        self.whereabouts: Whereabouts | None = None
        """Whereabouts of this provider's cluster, if known."""
        self._told: tuple[Principal | None] | None = None
        self._generations: dict[str, SeenGenerations] = {}

    def principal(self) -> Principal | None:
        if not self._told:
            self._told = (self._account.principal(),)
        return self._told[0]

    def check(self, plan: Plan) -> tuple[Finding, ...]:
        return self._account.check(plan)

    def policy(self, config: ClusterConfig) -> str:
        if not isinstance(self._account, WritesPolicies):
            return ""
        return self._account.policy(config)

    def dry_run(self, plan: Plan) -> tuple[Finding, ...]:
        return self._account.dry_run(plan)

    def machine_facts(self, plan: Plan, names: Sequence[str]) -> tuple[MachineFacts, ...]:
        return self._account.machine_facts(plan, names)

    def allowances(
        self, machines: Sequence[MachineType], regions: Sequence[str]
    ) -> PartialList[Allowance]:
        return self._account.allowances(machines, regions)

    def spot_evidence(self, plan: Plan) -> tuple[SpotEvidence, ...]:
        if not any(node.spot for node in plan.nodes):
            return ()
        return evidence(self._account, plan, self._account.places(plan))

    def create(
        self, plan: Plan, identity: Identity, journal: Journal, expected: Expected = None
    ) -> tuple[Node, ...]:
        there = self._adopted(plan, journal)
        plan = replace(plan, generation=self._generation(plan, there, expected or {}, journal))
        expires, moved = self._ends.choose(plan, there)
        if not moved:
            self._ends.repair(list(there.values()))
        creation = Creation(
            account=self._account,
            timing=self._timing,
            caller=self._caller(),
            plan=plan,
            identity=identity,
            journal=journal,
            there=there,
            expires=expires,
            moved=moved,
            expected=expected or {},
            near=self._search(plan.config.name).where.places,
            generations=self._seen(plan.config.name),
        )
        places = list({machine.place for machine in there.values()}) or list(
            by_evidence(self._account, plan, self._account.places(plan), journal)
        )
        made, refusals = self._first_filled(creation, places)
        if made is not None:
            return tuple(made[node.name] for node in plan.nodes)
        failure = _no_placement(refusals)
        if not there:
            finder = self._finder(self._search(plan.config.name), owner=plan.owner)
            teardown = Teardown(self._account, self._timing, journal)
            failure = roll_back(failure, lambda: teardown.clear(finder.near, {}), journal)
        raise failure

    def _first_filled(
        self, creation: Creation[NetworkT], places: list[Location]
    ) -> tuple[dict[str, Node] | None, list[tuple[Location, errors.CloudError]]]:
        """The nodes in the first place that takes them, None if none does, and the refusals."""
        refusals: list[tuple[Location, errors.CloudError]] = []
        while places:
            place, *places = places
            if any(refusal_covers(error, refused, place) for refused, error in refusals):
                continue
            try:
                return self._fill(creation, place, places), refusals
            except (errors.CloudError, errors.NodesError) as error:
                if isinstance(error, errors.NodesError) or not goes_on(error):
                    # Its requests came to nothing: a later `down` need not wait for any.
                    kind = type(error).__name__
                    creation.journal(events.PlacementRefused(placement=str(place), error=kind))
                    raise
                _journal_refusal(creation.journal, place, error)
                refusals.append((place, error))
                roomy = getattr(error, "elsewhere", ())  # zones that the cloud says have room
                places.sort(key=lambda place: place.zone not in roomy)
        return None, refusals

    def nodes(self, cluster: str) -> PartialList[Node]:
        found = self._search(cluster).machines()
        self._seen(cluster).look(found)
        return PartialList(_nodes(found), found.foreign)

    def nodes_and_ends(self, cluster: str) -> PartialList[Node]:
        found = self._search(cluster).machines()
        return PartialList(_nodes(self._ends.confirmed(found)), found.foreign)

    def own_end(self, node: Node) -> str:
        timed = self._account.ends_by_shutdown and node.expires is not None
        return has_end_command(node.expires or 0.0) if timed else ""

    def find(self, cluster: str) -> PartialList[Node]:
        found = self._account.machines(cluster)
        self._seen(cluster).look(found)
        return PartialList(_nodes(found), found.not_asked)

    def destroy(
        self,
        cluster: str,
        journal: Journal,
        expected: Expected = None,
        *,
        spared: Collection[str] = (),
        claimed: Collection[str] = (),
    ) -> tuple[NotAsked, ...]:
        search = self._search(cluster)
        self._seen(cluster).known |= set(claimed)
        finder = self._finder(search, spared=spared)
        teardown = Teardown(self._account, self._timing, journal)
        if search.where.places:
            teardown.clear(finder.near, expected or {})
            expected = None
        teardown.clear(finder.rest, expected or {})
        if finder.newer:
            raise created_anew(cluster, finder.newer)
        not_asked = finder.not_asked.values()
        raise_if_not_asked(search.missed(not_asked), saw="everything found is deleted; ")
        return tuple(not_asked)

    def delete_from_inside(self, cluster: str, journal: Journal) -> None:
        finder = self._finder(self._search(cluster))
        finder.generations.looked = bool(finder.generations.known)  # a machine knows its own
        gaps = moments.gaps()
        machines, resources = finder.near()
        alive = [m for m in machines if m.node.state != "gone"]
        if finder.newer and not alive:
            raise created_anew(cluster, finder.newer)
        for machine in alive:
            journal(events.NodeDeletionBegun(node=machine.node.name))
        with fence.deleting_what_was_seen(gaps):
            self._account.delete_from_inside(alive, resources)

    def serial_log(self, cluster: str, node: str) -> str:
        found = [m for m in self._search(cluster).machines() if m.node.name == node]
        return self._account.serial_log(found[0]) if found else ""

    def sweep(self) -> PartialList[Holding]:
        machines, resources = self._account.machines(), self._account.resources()
        alive = self._ends.confirmed([m for m in machines if m.node.state != "gone"])
        clusters = {m.cluster for m in alive} | {r.cluster for r in resources}
        now = self._timing.clock.now()
        for name in clusters:
            shared = [r for r in resources if r.cluster == name]
            self._seen(name).look([m for m in alive if m.cluster == name], shared, now)
        return PartialList(
            [_holding(self.name, name, alive, resources) for name in sorted(clusters)],
            [*machines.not_asked, *resources.not_asked],
        )

    def remove(
        self, cluster: str, names: Sequence[str], journal: Journal, expected: Expected = None
    ) -> None:
        seen = self._seen(cluster)
        newer: list[Vm | Resource] = []

        def find() -> Found:
            found = self._search(cluster).machines()
            seen.look(found)
            newer.extend(seen.newer(found, (), 0.0))
            mine, _ = seen.of_these([m for m in found if m.node.name in names], (), 0.0)
            return mine, ()

        late = {name: asked for name, asked in (expected or {}).items() if name in names}
        Teardown(self._account, self._timing, journal).clear(find, late)
        if newer:
            raise created_anew(cluster, tuple(dict.fromkeys(newer)))

    def move_ends(
        self, cluster: str, names: Sequence[str], expires: float | None, tell: Tell
    ) -> None:
        found = [m for m in self._search(cluster).machines() if m.node.name in names]
        alive = [m for m in found if m.node.state != "gone"]
        if not self._account.move_ends(alive, expires, tell):
            raise errors.CloudConfigError(
                f"the end of {', '.join(names)} cannot be moved: {self.name} fixes it when the VM "
                "is created",
                hint="run `cloudtrain up --replace` to replace the nodes, or `cloudtrain down`",
            )

    def _fill(
        self, creation: Creation[NetworkT], place: Location, later: Sequence[Location]
    ) -> dict[str, Node]:
        """Create the nodes in one place; once more without the placement group if that is full."""
        fence.confirm()
        creation = creation.until(self._timing.clock.now())
        try:
            return creation.fill(place, later=later)
        except errors.CapacityError as error:
            if not can_retry_without_placement_group(error):
                raise
            _journal_refusal(creation.journal, place, error)
            creation.journal(events.TriedApart(placement=str(place)))
        return creation.apart().fill(place, later=later)

    def _search(self, cluster: str) -> ClusterSearch:
        where = self.whereabouts
        if where is None or where.cluster != cluster:
            where = Whereabouts(cluster=cluster)
        return ClusterSearch(account=self._account, where=where)

    def _seen(self, cluster: str) -> SeenGenerations:
        """The generations of the cluster that this provider, and so its command, may delete."""
        known = self._search(cluster).where.generations
        return self._generations.setdefault(cluster, SeenGenerations(known=set(known)))

    def _finder(
        self, search: ClusterSearch, *, spared: Collection[str] = (), owner: Owner | None = None
    ) -> DeletionSearch:
        return DeletionSearch(
            search=search,
            spared=spared,
            owner=owner,
            generations=self._seen(search.where.cluster),
            now=self._timing.clock.now,
        )

    def _generation(
        self, plan: Plan, there: Mapping[str, Vm], expected: Mapping[str, float], journal: Journal
    ) -> str:
        """The generation of what is created: that of the existing nodes; that of a creation that
        was interrupted, whose nodes may still be listed; else a new one."""
        cluster = plan.config.name
        theirs = sorted({m.generation for m in there.values() if m.generation})
        begun = self._search(cluster).where.generations[:1] if expected else ()
        found = next(iter((*theirs, *begun)), None)
        if found is None:
            if all(node.name in there for node in plan.nodes):
                return ""  # an earlier version created all of them
            found = new_generation()
        if found not in theirs:
            journal(events.CreationBegun(id=found))
        self._seen(cluster).known.add(found)
        return found

    def _adopted(self, plan: Plan, journal: Journal) -> dict[str, Vm]:
        """The existing nodes by name. If a node has two VMs, the older one is kept; if there are
        nodes in several places, the place with the most. The others come from an interrupted
        creation and are deleted."""
        search = self._search(plan.config.name)
        found = [m for m in search.machines() if m.node.state != "gone"]
        for machine in found:
            refuse_other_owner(f"instance {machine.node.name}", machine.owner, plan.owner)
        seen = self._seen(plan.config.name)
        seen.look(found)
        if newer := seen.newer(found, (), 0.0):
            raise created_anew(plan.config.name, newer)
        found.sort(key=lambda m: (m.error is not None, m.node.created or 0.0, m.id))
        places = [m.place for m in found]
        main = max(places, key=lambda place: (places.count(place), place), default=None)
        kept: dict[str, Vm] = {}
        for machine in found:
            if machine.place == main and machine.error is None:
                kept.setdefault(machine.node.name, machine)
        extra = {m.id for m in found if kept.get(m.node.name) is not m}

        def find() -> Found:
            there = [m for m in search.machines() if m.id in extra]
            return [m for m in there if not seen.is_other(m.generation)], ()

        if extra:
            Teardown(self._account, self._timing, journal).clear(find, {})
        return kept


def _nodes(machines: Iterable[Vm]) -> tuple[Node, ...]:
    alive = [m.node for m in machines if m.node.state != "gone"]
    return tuple(sorted(alive, key=lambda node: node.rank))


def _journal_refusal(journal: Journal, place: Location, error: errors.CloudError) -> None:
    kind = type(error).__name__
    journal(events.PlacementRefused(placement=str(place), error=kind, text=error.message))


def _no_placement(refusals: Sequence[tuple[Location, errors.CloudError]]) -> errors.CloudError:
    """An error that lists each placement's refusal in the cloud's own words; the refusal itself if
    it is the only one, and not a lack of room."""
    if len(refusals) == 1 and not lacks_room(refusals[0][1]):
        return refusals[0][1]
    kind = of_all([error for _, error in refusals]) if refusals else errors.CapacityError
    each = tuple(errors.PlaceRefusal(place=str(place), error=error) for place, error in refusals)
    hints = [error.hint for _, error in refusals if error.hint]
    hint = hints[0] if hints else "add zones or regions to `placement`, or choose another machine"
    text = "\n".join(["no placement can provide the nodes:", *map(str, each)])
    return kind(text, hint=hint).copy_with(refusals=each)


def _holding(
    provider: str, cluster: str, machines: Sequence[Vm], resources: Sequence[Resource]
) -> Holding:
    mine = [m for m in machines if m.cluster == cluster]
    rest = [r for r in resources if r.cluster == cluster]
    standing = {m.generation for m in mine}
    until = [m.node.creating_until for m in mine]
    until += [r.creating_until for r in rest if r.generation not in standing]
    labelled = standing | {r.generation for r in rest}
    return Holding(
        cluster=cluster,
        provider=provider,
        nodes=tuple(sorted((m.node for m in mine), key=lambda node: node.rank)),
        resources=tuple(sorted(map(str, rest))),
        generations=tuple(sorted(labelled - {""})),
        creating_until=max((each for each in until if each is not None), default=None),
        desks=tuple(sorted({*(m.node.desk for m in mine), *(r.desk for r in rest)} - {""})),
        owners=tuple(
            sorted(
                {m.owner for m in mine if m.owner.id} | {r.owner for r in rest if r.owner.id},
                key=lambda owner: (owner.name, owner.id, owner.machine),
            )
        ),
    )


# ── Order the zones of a region by what the cloud says of spot capacity there ─────────────────


def evidence(
    account: CloudDriver[Any], plan: Plan, places: Sequence[Location]
) -> tuple[SpotEvidence, ...]:
    """The evidence on these places, in their order. Raises CloudError."""
    if not any(node.spot for node in plan.nodes):
        return ()
    found = {each.place: each for each in account.spot_evidence(plan, places)}
    return tuple(found[str(place)] for place in places if str(place) in found)


def by_evidence(
    account: CloudDriver[Any], plan: Plan, places: Sequence[Location], journal: Journal
) -> tuple[Location, ...]:
    """The places with the zones of each region of the placement ordered by evidence.

    The order of what the placement names stays as written. Zones without evidence come last, in
    their order. Without any evidence, and if it cannot be had, nothing is reordered."""
    left, groups = dict.fromkeys(places), []
    for entry in plan.config.placement:  # each place belongs to the first entry that names it
        group = [place for place in left if entry in (place.zone, place.region)]
        left = {place: None for place in left if place not in group}
        groups.append(group)
    groups += [[place] for place in left]
    open_to_choice = [place for group in groups if len(group) > 1 for place in group]
    if not open_to_choice:
        return tuple(places)
    found: tuple[SpotEvidence, ...] = errors.if_told(
        lambda: evidence(account, plan, open_to_choice), ()
    )
    scores = {each.place: each.score for each in found}
    ordered = tuple(
        place
        for group in groups
        for place in sorted(group, key=lambda p: -scores.get(str(p), float("-inf")))
    )
    if ordered != tuple(places):
        journal(events.SpotOrderChosen(places=tuple(map(str, ordered)), text=evidence_text(found)))
    return ordered
