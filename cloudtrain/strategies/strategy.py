"""What a strategy is: one value with all that a cluster, a run and a node have to know of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cloudtrain.model import ClusterConfig, Plan
from cloudtrain.run_record import Run, Task

Counts = Mapping[str, int]
"""Role → number of nodes."""

Missing = Callable[[Counts, Collection[str]], Iterator[tuple[str, str]]]
"""From the counts, and the roles that the file names (also as `false`), to each role that lacks
nodes and why it needs them."""

Wrap = Callable[[Plan, Run, Task, Mapping[str, str], str, str], str]
"""From the plan, the run, the task, addresses by node name, the name of Python and the user's
filled line to the line that is run on the task's node."""


def requires(**why: str) -> Missing:
    """At least one node of each of these roles."""

    def missing(counts: Counts, named: Collection[str]) -> Iterator[tuple[str, str]]:
        for role, text in why.items():
            if not counts.get(role):
                yield role, text

    return missing


def no_variables(config: ClusterConfig) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Library:
    """What tasks train with besides TensorFlow. A playbook builds it from its sources, in
    TensorFlow's environment; a user's own requirement of the same package gives way."""

    package: str
    version: str
    tensorflow: tuple[tuple[int, int], tuple[int, int]]
    """First and last release that it builds with."""
    advised: str
    """The TensorFlow to advise where another one was asked for."""
    python: str
    """The last Python that it runs on."""
    needs: tuple[str, ...]
    """What it imports, and what its build needs."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One `strategy:` of the config. What a field does not say is the same for all strategies: an
    evaluator never decides, and a cluster lists only the roles that have nodes."""

    name: str
    example: Counts
    """A cluster that trains. Where `single_node`, the one that is meant without `nodes`."""

    # ── the cluster ──
    roles: tuple[str, ...] = ()
    """The roles that there are, of chief and evaluator one node each at most; empty: any."""
    missing: Missing = field(default_factory=requires)
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """Role → why just this one must not be there."""
    single_node: bool = False
    tpus: bool = False
    """Whether only clouds that have TPUs can have it."""
    launched: bool = True
    """False: its name is known, and refused by `plan`."""

    # ── a run ──
    tf_config: bool = False
    """Whether its tasks get TF_CONFIG where `train.tf_config` is `auto`."""
    deciders: Literal["chief", "all"] = "chief"
    """Whose exit with 0 ends a run well where `train.success` does not say. `chief`: that or what
    stands for it; `all`: every task, unless there is a chief."""
    serves: tuple[str, ...] = ()
    """Roles whose port TensorFlow opens, where several tasks have one of them."""
    may_lose: tuple[str, ...] = ()
    """Roles of which tasks may fail while another one lives."""
    never_exit: tuple[str, ...] = ("ps",)
    """Roles whose tasks never exit by themselves (tf.distribute.Server.join): ended on success."""
    restart: Literal["as_left", "all_anew"] = "as_left"
    """What tasks start again with where `train.checkpoints` is not set: their work folders as they
    are, or, where they train in step and only the chief has saved, new ones."""
    environment: Callable[[ClusterConfig], Mapping[str, str]] = no_variables
    """Variables that every task gets; the user's own come after them."""
    wrap: Wrap | None = None
    """Makes the user's line another one."""

    # ── a node ──
    keras_3: Literal["works", "fit_fails", "fails"] = "works"
    """Whether it trains with Keras 3: `keras: auto` is tf_keras unless that works. `fit_fails`:
    over several nodes `model.fit` does (keras#20585, keras#18624), and custom loops do not."""
    gpus: bool = True
    """Whether its accelerators are GPUs."""
    library: Library | None = None
