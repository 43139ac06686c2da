"""A strategy as one value: all that a cluster, a run and a node need to know of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal

from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.model import ClusterConfig, Plan
from cloudtrain.core.run_record import Run, Task

Counts = Mapping[str, int]
"""Role → number of nodes."""

Missing = Callable[[Counts, Collection[str]], Iterator[tuple[str, str]]]
"""Maps the counts, and the roles named in the file (even as `false`), to each role that lacks
nodes and the reason it needs them."""

Wrap = Callable[[Plan, Run, Task, Mapping[str, str], str, str], str]
"""Maps the plan, the run, the task, addresses by node name, Python's name and the user's filled
line to the line that runs on the task's node."""

Variables = Callable[[Plan, Run, Task, Mapping[str, str]], Mapping[str, str]]
"""Maps the plan, the run, the task and addresses by node name to variables of the task."""


def requires(**why: str) -> Missing:
    """Require at least one node of each of these roles; role → reason."""

    def missing(counts: Counts, named: Collection[str]) -> Iterator[tuple[str, str]]:
        for role, text in why.items():
            if not counts.get(role):
                yield role, text

    return missing


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library to train with besides TensorFlow. A playbook builds it from source in TensorFlow's
    environment; it overrides a user's requirement of the same package."""

    package: str
    version: str
    tensorflow: tuple[tuple[int, int], tuple[int, int]]
    """First and last release of TensorFlow that it builds with."""
    advised: str
    """The TensorFlow version to recommend in place of an unsupported one."""
    python: str
    """The last Python that it runs on."""
    needs: tuple[str, ...]
    """Packages that it imports or needs for its build."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One `strategy:` of the config. Common to all: an evaluator never decides, and a cluster lists
    only the roles that have nodes."""

    name: str
    example: Counts
    """A cluster that trains. If `single_node`, the default without `nodes`."""

    # ── the cluster ──
    roles: tuple[str, ...] = ()
    """Allowed roles, with at most one chief and one evaluator; empty: any."""
    missing: Missing = field(default_factory=requires)
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """Role → why it is not allowed."""
    single_node: bool = False
    tpus: bool = False
    """Whether its nodes are the hosts of one TPU, and not VMs."""
    launched: bool = True
    """False: the name is known, but `plan` refuses it."""

    # ── a run ──
    tf_config: bool = False
    """Whether its tasks get TF_CONFIG if `train.tf_config` is `auto`."""
    deciders: Literal["chief", "all"] = "chief"
    """Tasks that must exit with 0 for success if `train.success` is not set. `chief`: that or its
    substitute; `all`: every task, unless there is a chief."""
    serves: tuple[str, ...] = ()
    """Roles whose port TensorFlow opens, if several tasks have one of these roles."""
    may_lose: tuple[str, ...] = ()
    """Roles whose tasks may fail as long as another one is alive."""
    restarts_alone: tuple[str, ...] = ()
    """Roles whose tasks may be restarted while all others run on; a part of `may_lose`."""
    never_exit: tuple[str, ...] = ("ps",)
    """Roles whose tasks never exit by themselves (tf.distribute.Server.join): ended on success."""
    restart: Literal["as_left", "all_anew"] = "as_left"
    """Work folders of a restart without `train.checkpoints`: as they are, or, if tasks train in
    step and only the chief has saved, new ones."""
    all_reduces: bool = False
    """Whether its training tasks reduce gradients with each other."""
    environment: Callable[[ClusterConfig], Mapping[str, str]] = lambda config: {}
    """Variables of every task; the user's own override them."""
    task_environment: Variables = lambda plan, run, task, addresses: {}
    """Variables of one task; the user's own override them."""
    placeholders: Mapping[str, str] = field(default_factory=dict)
    """Its own placeholders of the command → the variable above that has the value."""
    wrap: Wrap | None = None
    """Wraps the user's line."""

    uses: tuple[str, ...] = ()
    """Patterns of the full names by which a script shows that it is written for this strategy."""

    # ── a node ──
    keras_3: Literal["works", "fit_fails", "fails"] = "works"
    """Whether it trains with Keras 3: `keras: auto` is tf_keras unless that works. `fit_fails`:
    `model.fit` fails over several nodes (keras#20585, keras#18624), custom loops do not."""
    gpus: bool = True
    """Whether its accelerators are GPUs."""
    library: Library | None = None
