"""One of a cluster's tasks: a role, an index, and their order."""

from __future__ import annotations

import re

from cloudtrain.core.dataclass import dataclass

CLUSTER_NAME = re.compile(r"[a-z][a-z0-9-]{0,29}\Z")
ROLE_NAME = re.compile(r"[a-z]([a-z0-9]{0,13}[a-z])?\Z")
NODE_INDEX = re.compile(r"(0|[1-9][0-9]{0,4})\Z")
"""The names that this program gives: in files, folders, labels and commands."""

ROLE_ORDER = ("chief", "worker", "ps", "evaluator")
"""TF_CONFIG's order (semantics of tf.distribute.cluster_resolver.TFConfigClusterResolver)."""


@dataclass(frozen=True, kw_only=True)
class TaskId:
    """The `index`-th task of a role, from 0. Base of Node, NodePlan and Task."""

    role: str
    index: int

    @property
    def task(self) -> str:
        """`worker0`, as shown to users."""
        return f"{self.role}{self.index}"

    def node_name(self, cluster: str) -> str:
        """Unique in an account: `mnist-worker0`."""
        return f"{cluster}-{self.task}"

    @classmethod
    def of_node(cls, name: str, cluster: str) -> TaskId | None:
        """TaskId of a node's name; None if the name does not end with a number."""
        found = re.fullmatch(r"(.*?)([0-9]+)", name.removeprefix(f"{cluster}-"))
        return TaskId(role=found[1], index=int(found[2])) if found else None

    @property
    def rank(self) -> tuple[int, str, int]:
        """Sorts in TF_CONFIG's order, other roles after those by name."""
        return (*role_rank(self.role), self.index)


def role_rank(role: str) -> tuple[int, str]:
    """Sorts roles in TF_CONFIG's order, others by name; `master` is the chief of TensorFlow 1."""
    if role == "master":
        return (0, role)
    return (ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER), role)
