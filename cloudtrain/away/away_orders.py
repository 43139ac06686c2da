"""Orders the desk of a run that is away to end it, and waits for what becomes of the order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cloudtrain.artifacts.run_index import StoredRuns
from cloudtrain.away.find_away import FoundAway, find_away, own_desk
from cloudtrain.away.job import Process, process_of
from cloudtrain.away.orders import (
    FRESH,
    Order,
    OrderAnswer,
    Verb,
    answer_of,
    load_order_key,
    new_order,
    post_order,
)
from cloudtrain.away.published import AwayState, write_state
from cloudtrain.away.signatures import NOT_SIGNED, SigningKey
from cloudtrain.cluster.place_choice import each_account
from cloudtrain.cluster.session import Handle, open_session
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.errors import CloudtrainError, NotLanded, StoreError, UsageError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.paths import some
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import ORDER_DONE, ORDER_RECEIVED, Clock, Retry, poll_until
from cloudtrain.core.run_record import Run
from cloudtrain.state import Records, known_clusters
from cloudtrain.state.folder import ORDER_KEY

POLL = Retry(pause=2.0, within=ORDER_DONE)
"""Looks at the store for the desk's answer."""

GONE_EVERY = 15.0
"""Seconds between two questions to the account whether the desk is gone."""


def order_stop(
    found: FoundAway, state: AwayState, key_file: Path | None, console: Console, clock: Clock
) -> Run:
    """Have the desk stop and land its run; returns the run at its end."""
    if state.run is None:
        raise UsageError(
            f"{found.name} has no active run yet: its controller is {state.phase}",
            hint=f"`cloudtrain down {found.name}` ends it before a run has begun",
        )
    follow_order(found, state, "stop-run", key_file, console, clock)
    return StoredRuns(found.store, found.name).run(state.run).run


def has_order_key(found: FoundAway, key_file: Path | None) -> bool:
    here = Records(found.name).folder / ORDER_KEY
    return key_file is not None or (found.record is not None and here.exists())


def order_key(found: FoundAway, key_file: Path | None) -> SigningKey:
    """The key in that file, or in the cluster's record. Raises UsageError, CredentialsError."""
    if has_order_key(found, key_file):
        return load_order_key(key_file or Records(found.name).folder / ORDER_KEY)
    place = found.published.key_place() or "the record of the machine that sent it away"
    raise UsageError(
        f"ending {found.name}, which is away, needs its order key",
        hint=f"it is in {place}: run this there, or pass a copy with --order-key PATH or "
        f"CLOUDTRAIN_ORDER_KEY; {without_desk(found)}",
    )


def without_desk(found: FoundAway) -> str:
    """Hint on ending the cluster by rights in its account alone, without an order to its desk."""
    argument = found.name if found.record is not None else "FILE"
    return (
        f"`cloudtrain down {argument} --discard` deletes controller and nodes with your rights in "
        "the account, and loses what only they hold"
    )


def follow_order(
    found: FoundAway,
    state: AwayState | None,
    verb: Verb,
    key_file: Path | None,
    console: Console,
    clock: Clock,
) -> None:
    """Post the order and report what becomes of it, until it is done or the desk has ended.
    `state`: what the desk last reported, if the store still has that."""
    key = order_key(found, key_file)
    found.published.count_on(key.public)
    run = state.run if state is not None and verb == "stop-run" else None
    desk = found.published.desk
    assert desk is not None, "a cluster without a controller is not found"
    order = new_order(found.name, desk, verb, run=run, now=clock.now())
    post_order(found.store, key, order)
    console.say(f"ordered the controller of {found.name}: {verb}{f' {run}' if run else ''}")
    phase = state.phase if state is not None else ""
    wait = _Wait(found=found, order=order, console=console, clock=clock, phase=phase)
    answered = poll_until(wait.look, POLL, clock=clock)
    if answered is None:
        raise CloudtrainError(
            f"the controller of {found.name} has confirmed the order, and has not carried it out "
            f"after {ORDER_DONE / 60:.0f} min",
            hint=f"`cloudtrain logs -f {found.name}` shows what it does",
        )
    if answered.state == "refused":
        raise UsageError(f"the controller of {found.name} refuses {verb}: {answered.text}")
    if answered.state == "failed":
        raise NotLanded(
            f"the controller of {found.name} could not end it: {answered.text}",
            hint=f"order it again once the cause is gone; {without_desk(found)}",
        )
    if answered.text:
        console.say(answered.text)


@dataclass(kw_only=True)
class _Wait:
    """State of waiting for one order. All that counts is what the run's desk has signed, and that
    the account no longer lists the desk."""

    found: FoundAway
    order: Order
    console: Console
    clock: Clock
    phase: str
    confirmed: bool = False
    told: set[str] = field(default_factory=set)
    asked: float = 0.0
    """When the account was last asked whether the desk is gone."""

    def look(self) -> OrderAnswer | None:
        """The last answer; None while there is more to come."""
        keys = self.found.published.public_keys
        try:
            answer, state = answer_of(self.found.store, self.order, keys()), self.found.state()
        except StoreError as error:
            self._say_once(f"the store does not answer, trying again: {error.message}")
            return None
        ended = OrderAnswer(nonce=self.order.nonce, state="done", text="", as_of=self.clock.now())
        if answer is not None and not answer.is_signed:
            self._say_once(f"ignored an answer: {answer.state}: it is {NOT_SIGNED}")
            answer = None
        if answer is not None and not self.confirmed and answer.state in ("received", "done"):
            self.confirmed = True
            self.console.say("the controller has confirmed the order")
        if state is not None and state.unsigned:
            self._say_once(f"ignored a report: {state.phase}: it is {state.unsigned}")
            if state.phase == "ended" and self._is_gone():
                return ended
        elif state is not None and state.phase != self.phase:
            self.phase = state.phase
            text = "" if state.phase == "ended" else state.text
            self.console.say(": ".join(filter(None, [state.phase, text])))
        if answer is not None and answer.state != "received":
            return answer
        if state is not None and state.phase == "ended" and not state.unsigned:
            return ended
        if not self.confirmed and self.clock.now() - self.order.created > ORDER_RECEIVED:
            age = (self.clock.now() - state.as_of) / 60 if state is not None else 0.0
            last = f"; it last reported {age:.0f} min ago" if state is not None else ""
            raise CloudtrainError(
                f"the controller of {self.found.name} has not confirmed the order after "
                f"{ORDER_RECEIVED / 60:.0f} min{last}",
                hint=f"it is still carried out if it is read within {FRESH / 60:.0f} min of its "
                f"posting; {without_desk(self.found)}",
            )
        return None

    def _is_gone(self) -> bool:
        if self.clock.now() - self.asked < GONE_EVERY:
            return False
        self.asked = self.clock.now()
        return self.found.is_gone()

    def _say_once(self, text: str) -> None:
        if text not in self.told:
            self.told.add(text)
            self.console.say(text)


# ── down ───────────────────────────────────────────────────────────────────────


def end_desk(
    config: ClusterConfig, order_key: Path | None, *, discard: bool, console: Console, clock: Clock
) -> Handle | None:
    """Order the desk to end, and wait for it. Returns its own cluster, to be deleted with what it
    left; None if the cluster has no desk.

    With `discard` it is not asked: the deletion ends it. Without, it is, as it alone has the keys
    of the nodes; unless it is known to have ended, or there are none. Raises UsageError without the
    order key, NotLanded."""
    is_up_from_here = config.name in known_clusters() and Records(config.name).is_open()
    is_away = Records(config.name).is_away()
    found = state = None
    try:
        found = find_away(config.name, config)
        state = found.state() if found is not None else None
    except StoreError as error:
        if is_away and not discard:
            raise
        console.warn(f"whether it has a controller is not known: {error.message}")
        if not discard:
            return None
    is_sent = is_away or found is not None
    if not is_sent and (is_up_from_here or config.away.identity is None):
        return None
    desk = own_desk(config)
    if desk is None or discard or is_over(desk, config, found, state, order_key, console, clock):
        return desk
    assert found is not None
    follow_order(found, state, "down", order_key, console, clock)
    return desk


def is_over(
    desk: Handle,
    config: ClusterConfig,
    found: FoundAway | None,
    state: AwayState | None,
    order_key: Path | None,
    console: Console,
    clock: Clock,
) -> bool:
    """True if nothing is lost with the desk, False if it is to be ordered to end. That it has ended
    is believed if its report is signed, if it says so over SSH, or if the account lists it no more.
    Raises NotLanded for one that has the keys of nodes and takes no orders."""
    name, has_signed = desk.config.name, state is not None and not state.unsigned
    has_ended = state is not None and state.phase == "ended"
    # "starting" is what its client says before it starts the process: only the machine knows
    # whether it has.
    works = state is not None and state.phase not in ("starting", "ended")
    if state is not None and has_signed and works and not state.is_silent(clock.now()):
        return False
    if is_gone(desk, config):
        if state is not None and not has_ended:
            console.warn(f"the controller of {config.name} is gone")
        return True
    process = "ended" if has_signed and has_ended else process_there(desk, console)
    if found is not None and process == "running":
        return False
    if process in ("ended", "none"):
        why = f"the command of {name} has ended or never began"
    elif state is None:
        why = f"the controller {name} has not reported to the store"
    elif found is not None and (not state.unsigned or has_order_key(found, order_key)):
        return False
    else:
        why = f"what the store has of {name} is {state.unsigned}"
    refuse_to_lose_keys(config, why)
    return True


def process_there(desk: Handle, console: Console) -> Process | None:
    """State of the desk's process, as the desk says; None without a key to it, or an answer."""
    if not desk.records.has_keys():
        return None
    try:
        with open_session(desk, console) as session:
            return process_of(session, desk.config.name) if session.nodes else None
    except CloudtrainError:
        return None


def is_gone(desk: Handle, config: ClusterConfig) -> bool:
    """True if no place of the account lists it, and all answered; also if its machine has stopped,
    as its process and the secrets were in memory, and nothing starts them again. Raises NotLanded
    if it has stopped and there are nodes: their keys are on its disk alone."""
    listed = desk.provider.find(desk.config.name)
    if any(not each.foreign for each in listed.not_asked) or any(
        node.state not in ("stopped", "gone") for node in listed
    ):
        return False
    stopped = [node.name for node in listed if node.state == "stopped"]
    if stopped:
        refuse_to_lose_keys(config, f"{', '.join(stopped)} has stopped")
    return True


def refuse_to_lose_keys(config: ClusterConfig, why: str) -> None:
    """Raise NotLanded if the cluster has nodes, or may have some where the cloud does not answer:
    their keys are on the desk's disk alone."""
    if nodes := nodes_left(config):
        raise NotLanded(
            f"{why}, and the keys of {nodes} are on its disk alone",
            hint="nodes store by themselves what has not landed, before their lifetime ends; "
            f"`cloudtrain down {config.name} --discard` gives the rest up and deletes all",
        )


def nodes_left(config: ClusterConfig) -> str:
    """Names of the nodes that the cluster has in any account, or where it may have some, as the
    cloud does not answer there; "" if it has none."""
    found = [Handle(account).provider.find(config.name) for account in each_account(config)]
    left = [node.name for nodes in found for node in nodes if node.state != "gone"]
    silent = [each.place for nodes in found for each in nodes.not_asked if each.silent]
    if not left and silent:
        return f"nodes in {', '.join(silent)}, which does not answer,"
    return some(left)


def report_end(config: ClusterConfig, console: Console, clock: Clock) -> None:
    """Tell other machines of the end of a desk that did not report it itself: signed if the order
    key is here, and what it ends is signed too."""
    try:
        found = find_away(config.name, config)
        state = found.state() if found is not None else None
        if found is None or state is None or state.phase == "ended":
            return
        here = Records(config.name).folder / ORDER_KEY
        signs = found.record is not None and not state.unsigned and here.exists()
        key = load_order_key(here) if signs else None
        error = "ended by `cloudtrain down`: its controller did not report its end"
        ended = replace(state, phase="ended", error=error, exit_code=1, as_of=clock.now())
        write_state(found.store, replace(ended, sequence=state.sequence + 1), key)
    except CloudtrainError as error:
        console.warn(f"the store still has it as running: {error.message}")
