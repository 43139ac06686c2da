"""Orders the desk of a run that is away to end it, and waits for what becomes of the order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cloudtrain.artifacts.run_index import StoredRuns
from cloudtrain.away.find_away import FoundAway
from cloudtrain.away.orders import (
    FRESH,
    Answer,
    Order,
    Verb,
    answer_of,
    load_order_key,
    new_order,
    post_order,
)
from cloudtrain.away.published import AwayState
from cloudtrain.away.signatures import NOT_SIGNED, SigningKey
from cloudtrain.core.errors import CloudtrainError, NotLanded, StoreError, UsageError
from cloudtrain.core.protocols import Console
from cloudtrain.core.retry import ORDER_DONE, ORDER_RECEIVED, Clock, Retry, poll_until
from cloudtrain.core.run_record import Run
from cloudtrain.state import Records
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
    key = order_key(found, key_file)
    follow_order(found, state, "stop-run", key, console, clock)
    return StoredRuns(found.store, found.name).run(state.run).run


def order_down(
    found: FoundAway, state: AwayState | None, key_file: Path | None, console: Console, clock: Clock
) -> None:
    """Have the desk end what it does, land it, and delete the cluster and itself. `state`: what it
    last reported, if the store still has that.
    """
    key = order_key(found, key_file)
    follow_order(found, state, "down", key, console, clock)


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
    key: SigningKey,
    console: Console,
    clock: Clock,
) -> None:
    """Post the order and report what becomes of it, until it is done or the desk has ended."""
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
    the account no longer lists the desk.
    """

    found: FoundAway
    order: Order
    console: Console
    clock: Clock
    phase: str
    confirmed: bool = False
    told: set[str] = field(default_factory=set)
    asked: float = 0.0
    """When the account was last asked whether the desk is gone."""

    def look(self) -> Answer | None:
        """The last answer; None while there is more to come."""
        keys = self.found.published.public_keys
        try:
            answer, state = answer_of(self.found.store, self.order, keys()), self.found.state()
        except StoreError as error:
            self._say_once(f"the store does not answer, trying again: {error.message}")
            return None
        ended = Answer(nonce=self.order.nonce, state="done", text="", as_of=self.clock.now())
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
            raise unconfirmed(self.found, state, self.clock.now())
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


def unconfirmed(found: FoundAway, state: AwayState | None, now: float) -> CloudtrainError:
    """Error for a desk that does not read its orders."""
    last = f"; it last reported {(now - state.as_of) / 60:.0f} min ago" if state else ""
    return CloudtrainError(
        f"the controller of {found.name} has not confirmed the order after "
        f"{ORDER_RECEIVED / 60:.0f} min{last}",
        hint=f"it is still carried out if it is read within {FRESH / 60:.0f} min of its posting; "
        f"{without_desk(found)}",
    )
