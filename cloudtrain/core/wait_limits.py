"""Every wait of a run and of `down`: its limit, what ends it, what happens at the limit.

docs/internals/states.md is generated from this table. The config sets others (docs/config.md):
`train.start_timeout`, `stall_timeout`, `deadline`, `grace`, `evaluator_grace`; `limits.wait`,
`max_lifetime`.
"""

from __future__ import annotations


class Wait(float):
    """Seconds of a wait, at most. `until`: what ends it; `then`: what happens at the limit."""

    until: str
    then: str

    def __new__(cls, seconds: float, *, until: str = "", then: str = "") -> Wait:
        wait = super().__new__(cls, seconds)
        wait.until, wait.then = until, then
        return wait


# ── A new cluster ────────────────────────────────────────────────────────────

FIRST_LOGIN = Wait(
    600.0,
    until="a new node accepts the first login",
    then="`up` fails on that node, with the last refusal; `up` again continues",
)
CLOUD_INIT = Wait(
    120.0,
    until="the cloud-init of a new node has ended",
    then="the setup begins, and says that cloud-init still runs",
)

# ── A node ───────────────────────────────────────────────────────────────────

NODE_AWAY = Wait(
    60.0,
    until="a node that did not answer a command answers",
    then="the command fails on that node; `down` keeps the nodes",
)
NODE_KNOWN = Wait(
    60.0, until="every node's state is known (`hosts`)", then="`train` refuses, naming the nodes"
)
HOST_ANSWER = Wait(
    60.0,
    until="a machine of your own (`hosts`) has answered one question of the provider",
    then="it counts as a machine that does not answer",
)
PROXY_ANSWER = Wait(
    60.0,
    until="the command of `network.ssh_proxy` has connected to the node",
    then="the node counts as one that does not answer, with what the command wrote",
)
PROXY_END = Wait(
    1.0,
    until="the command of `network.ssh_proxy` has ended with its connection",
    then="it is sent TERM, and after as long again KILL",
)
NODE_LISTED = Wait(
    60.0,
    until="a cloud lists a node that was requested a moment ago",
    then="for `up` it is lost, for `down` it was never created",
)
NODE_STARTS = Wait(
    300.0,
    until="nodes run that a killed command was starting",
    then="`down` tries to land from them as they are",
)
NODE_TAKEN = Wait(
    180.0,
    until="a preempted node has disappeared",
    then="the next attempt starts with the nodes that are there",
)
ADDRESS_FREED = Wait(
    300.0,
    until="the address of a deleted node is free for the node that is recreated for its worker",
    then="the run continues without that worker",
)
HOST_RETURNS = Wait(
    600.0,
    until="a host answers again whose worker is to be restarted alone (`hosts`)",
    then="that restart has failed, and counts",
)

NODE_SILENT = Wait(
    120.0,
    until="a byte of a listing, checksum or stream arrives from a node",
    then="the node counts as unreachable, and what was read from it fails",
)
PROOF_ANSWER = Wait(
    60.0, until="a node answers the proof for the first time", then="that node has failed the proof"
)
PROOF_SILENT = Wait(
    60.0, until="a heartbeat of a node's proof arrives", then="that node has failed the proof"
)

# ── A running attempt ────────────────────────────────────────────────────────

LOST_AFTER = Wait(
    60.0, until="a silent node answers, while another node does", then="its task counts as lost"
)
ALONE_LOST_AFTER = Wait(
    300.0,
    until="a silent node answers, while none does but the provider: more likely our own network "
    "failed",
    then="its task counts as lost",
)
PROVIDER_SILENT = Wait(
    24 * 3600.0, until="a silent node answers, or its provider", then="its task counts as lost"
)
FROZEN_AFTER = Wait(
    15.0, until="a stopped process (SIGSTOP) goes on", then="its task counts as frozen"
)
LOG_SILENT = Wait(
    15.0,
    until="a byte of a task's log or a heartbeat (every 5 s) arrives",
    then="the connection counts as dead, and another one follows the task",
)
JOINED_LATE = Wait(
    10.0,
    until="a report of an open port arrives after its task's end: ports are checked once a second, "
    "and heartbeats come every five",
    then="the task counts as never joined",
)
STILL = Wait(
    300.0,
    until="a task that runs writes a log line or a file, or computes",
    then="a warning says where each task waits; nothing is ended",
)
PEER_GONE = Wait(
    60.0,
    until="the same, once a task that the others are connected to has ended with 0",
    then="a warning says for whom they wait; nothing is ended",
)
SETTLE = Wait(
    1.0, until="a failure arrives that outranks a certain cause", then="the cause is declared"
)
WINDOW = Wait(
    20.0,
    until="all tasks have ended, or one cause is certain",
    then="the likeliest cause is declared",
)
OTHERS_GRACE = Wait(
    60.0,
    until="the other tasks end after the deciding ones have succeeded",
    then="they are stopped, and the run has succeeded",
)
STOP_ANSWER = Wait(
    30.0,
    until="a node says, after `train.grace`, that its task was stopped",
    then="a warning; the landing ends what still runs",
)
ORPHANS_ANSWER = Wait(
    120.0,
    until="a node says that no task runs there any more",
    then="a warning; files that still change keep `down` from destroying the node",
)
LAST_WORDS = Wait(
    15.0,
    until="the last bytes of stopped tasks' logs arrive",
    then="the landing takes the logs as they are here",
)

# ── The end ──────────────────────────────────────────────────────────────────

OUTAGE = Wait(
    1800.0,
    until="a store or a cloud that is away at the end of a run, or of `run` and `down`, answers",
    then="the command fails; of `run` and `down`, a background process goes on trying, until the "
    "nodes' own end",
)

# ── Another process ──────────────────────────────────────────────────────────

LOCK_HANDED_OVER = Wait(
    30.0,
    until="the process that has started or ended a run releases the cluster's lock",
    then="the next command is refused, naming the holder",
)
STOP_HANDED_OVER = Wait(
    3600.0,
    until="the process that supervises the run has stopped and landed it",
    then="`stop-run` and `down` are refused, naming that process; nothing is destroyed",
)
IDLE_DOWN = Wait(
    3600.0,
    until="a `down` that `limits.idle` has started is over",
    then="`down` is refused, naming that process; nothing is destroyed",
)
ORDER_RECEIVED = Wait(
    300.0,
    until="the controller of a run that is away confirms an order",
    then="`stop-run` and `down` fail, and say how to end the run without its controller",
)
ORDER_DONE = Wait(
    3600.0,
    until="a controller has carried out the order that it has confirmed",
    then="`stop-run` and `down` fail; the controller goes on",
)


WAITS = {name: each for name, each in globals().items() if isinstance(each, Wait)}
"""All of them, by their names."""
