"""Reboots a node and waits until it answers from a new boot."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.core.errors import HostKeyMismatch, NodeUnreachable, StepFailed
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import Stage, Transport
from cloudtrain.core.retry import Clock, Retry, poll_until
from cloudtrain.core.shell import script

BACK = Retry(pause=3.0, within=600.0)
"""Checks whether a rebooted node answers."""


@dataclass(frozen=True, kw_only=True)
class Reboots:
    transport: Transport
    stage: Stage
    clock: Clock

    def reboot(self, node: Node) -> None:
        """Reboot a node. Raises StepFailed if it refuses, NodeUnreachable if it stays away."""
        self.stage.node(node.name, "reboot")
        before = self._boot(node)
        try:
            done = self.transport.run(node, script(_REBOOT), timeout=60.0)
        except NodeUnreachable:
            pass  # it went down before it could answer
        else:
            if done.exit_code != 0:
                words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
                raise StepFailed(node.name, f"it needs a reboot: {words}", step="reboot")
        words = ""

        def is_back() -> bool | None:
            nonlocal words
            try:
                if self._boot(node) != before:
                    return True
                words = "it has not gone down yet"
            except (NodeUnreachable, HostKeyMismatch) as error:
                words = error.message.removeprefix(f"{node.name}: ")
            self.stage.node(node.name, f"rebooting: {words}")
            return None

        if poll_until(is_back, BACK, clock=self.clock) is None:
            raise NodeUnreachable(
                node.name,
                f"not back after a reboot within {BACK.within:.0f} s: {words}",
                hint="check the node's boot log in the cloud's console; "
                "`cloudtrain up` continues from here",
            )

    def _boot(self, node: Node) -> str:
        answer = self.transport.ask(node, "cat /proc/sys/kernel/random/boot_id")
        return answer.stdout.decode("ascii", "replace").strip()


# Never under a training task: its processes have CLOUDTRAIN_TASK in their environment.
_REBOOT = """\
root=
[ "$(id -u)" = 0 ] || root='sudo -n'
if $root grep -qsa CLOUDTRAIN_TASK= /proc/[0-9]*/environ; then
    echo "a training task is running there: run \\`cloudtrain stop-run\\` first" >&2
    exit 1
fi
sync
$root systemctl reboot </dev/null || $root reboot </dev/null
"""
