"""Every wait has a limit, or a stated end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import children, nodes, parsed

PACKAGE = Path(__file__).resolve().parents[2] / "cloudtrain"

UNLIMITED = {
    # ended by a person, or by what they watch
    ("commands/tensorboard.py", "tensorboard"): "until Ctrl-C",
    ("cli/live_view.py", "draw"): "--watch: until Ctrl-C",
    ("cli/live_view.py", "print_changes"): "--watch: until Ctrl-C",
    ("cli/report.py", "write_again"): "report --watch: until the run has ended, or Ctrl-C",
    ("commands/logs.py", ""): "logs -f: until the run, its follower or controller has ended",
    ("commands/idle.py", ""): "limits.idle: its pauses grow to half an hour; `down` ends it",
    # only a pace: the limit is added where it is used
    ("cluster/place_choice.py", ""): "within --wait",
    ("runs/node_replacement.py", ""): "within limits.wait, deadline and the nodes' life (`_until`)",
    (
        "runs/state_machine.py",
        "",
    ): "pauses between restarts, of which train.max_restarts is the limit",
    ("providers/base/timing.py", ""): "`until` adds the limit of what is created or deleted",
    ("stores/az.py", ""): "a copy within the store: COPY_SECONDS without progress",
    ("runs/tail.py", ""): "until the attempt's end closes the follower; LOST_AFTER decides before",
    # an end that is near, as something else is over
    ("commands/down.py", "deletion_progress"): "the thread looks at its event every second",
    ("rehearsal/fault_trial.py", "Trial.run"): "the thread looks at `over`, set just before",
    ("rehearsal/faults.py", "inject_client"): "`over` is set when the trial's run has ended",
    ("ssh/channel_io.py", "pump_channel"): "the feeder has _FEEDER_GRACE seconds",
    ("ssh/resident.py", "Resident.run"): "the feeder has _FEEDER_GRACE seconds",
    ("report/tensorboard_server.py", "serving"): "the process was killed just before",
    ("providers/local/processes.py", "ForkServer.__exit__"): "the process was killed just before",
    # work whose every request or answer has a limit of its own
    ("core/parallel.py", "_Batch.answer"): "after all work is done",
    ("core/parallel.py", "_Batch._wait"): "the work's own limits",
    ("artifacts/uploads.py", "_Exchange.settle"): "a store's request",
    ("artifacts/uploads.py", "upload_via_client"): "a command with NODE_SILENT",
    ("artifacts/uploads.py", "_Receiver.write"): "a store's request",
    ("artifacts/uploads.py", "_Receiver.finish"): "a store's request",
    ("artifacts/uploads.py", "_Receiver._settle"): "a store's request",
    ("stores/az.py", "_Container._staged"): "a store's request",
    ("setup/prepare.py", "SharedEnvironments.close"): "uploads by a node: NODE_SILENT",
    ("runs/observers.py", "PeriodicSync.end"): "the transfer in flight: NODE_SILENT",
    ("runs/node_talk.py", "_Board.begin"): "each node's own limits, or PROOF_SILENT",
    (
        "datasets/exchange.py",
        "Exchange.orders",
    ): "the downloader's answers: NODE_SILENT, then `end`",
    ("providers/azure/shared_poll.py", "SharedPoll._next_round"): "one request for all",
    ("providers/base/create.py", "uninterrupted"): "requests of the cloud",
    ("providers/gcp/requests.py", "ClusterNetwork.once"): "requests of the cloud",
    # servers, which serve until they are stopped
    ("providers/local/channels.py", "Reaper._reap"): "a node's server",
    ("providers/local/ssh_server.py", "_accept"): "a node's server",
}
"""Place of a wait without a limit → its end. Programs of the node (cloudtrain/node) end with their
task, their order or the connection; docs/internals/states.md has what this side does otherwise."""

WAITS = ("wait", "join", "get", "acquire", "communicate", "result")
"""Methods that wait for ever if they are called without an argument."""


def test_every_wait_without_a_limit_has_a_stated_end() -> None:
    found = set(unlimited())
    assert found - UNLIMITED.keys() == set(), "add a limit (core/retry.py), or its end"
    assert UNLIMITED.keys() - found == set(), "these wait no more"


def test_a_wait_without_a_limit_is_seen() -> None:
    tree = ast.parse(
        "class A:\n def b(self): self.event.wait(); ','.join([]); {}.get(1); t.join(5)\n"
        "P = Retry(pause=1.0)\nQ = Retry(pause=1.0, within=3.0)"
    )
    assert list(waits_in(tree)) == ["A.b", ""]


def unlimited() -> Iterator[tuple[str, str]]:
    folders = (PACKAGE, PACKAGE / "providers", PACKAGE / "playbooks")
    paths = {path for folder in folders for path in folder.resolve().rglob("*.py")}
    for path in sorted(paths):
        name = path.relative_to(PACKAGE.parent).as_posix().removeprefix("cloudtrain/")
        if not name.startswith("node/") and any(map(waits_for_ever, nodes(path, ast.Call))):
            yield from ((name, where) for where in waits_in(parsed(path)))


def waits_in(tree: ast.AST) -> Iterator[str]:
    left = [(tree, "")]
    while left:
        node, where = left.pop()
        if isinstance(node, ast.Call) and waits_for_ever(node):
            yield where
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            where = f"{where}.{node.name}".removeprefix(".")
        left += [(child, where) for child in children(node)][::-1]


def waits_for_ever(call: ast.Call) -> bool:
    given = {keyword.arg for keyword in call.keywords}
    if isinstance(call.func, ast.Attribute):
        most = {"wait_for": 1}.get(call.func.attr, 0 if call.func.attr in WAITS else -1)
        return len(call.args) == most and not given & {"timeout", "seconds"}
    return (
        isinstance(call.func, ast.Name)
        and call.func.id == "Retry"
        and not (given & {"within", "tries"})
    )
