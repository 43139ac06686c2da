"""Values: what a script's source says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Literal

from cloudtrain.training.strategies import STRATEGIES


@dataclass(frozen=True, kw_only=True)
class Use:
    """One name or text of a script, and its place."""

    name: str
    """A full dotted name (`tensorflow.distribute.MirroredStrategy`, whatever the script calls
    TensorFlow), the URI, or the key of TF_CONFIG."""
    file: str
    """Path in the delivered code."""
    line: int
    sure: bool = True
    """False in a `try:` or below an `if` on a version or an attribute: other code may replace
    it."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


Library = Literal["argparse", "absl", "click"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One argument that a script defines."""

    library: Library
    names: tuple[str, ...]
    """As written on a command line (`--job-dir`, `-j`); of argparse and click also positional
    ones."""
    file: str
    line: int
    required: bool = False
    flag: bool = False
    """absl and click: true or false without a value, also as `--noNAME` or `--no-NAME`."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """argparse: `nargs`, `action`, … as `add_argument` takes them."""
    default_uri: str | None = None
    default_path: str | None = None
    """An absolute one."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Everything that a program defines for its command line."""

    options: tuple[Option, ...] = ()
    all_known: bool = True
    """False if some are computed, or defined where this reader does not look."""
    tolerant: bool = False
    """Unknown ones are ignored: `parse_known_args`, `tf.app.run`."""
    abbreviations: bool = True
    """argparse: whether `--epo` may stand for `--epochs`."""


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """Facts on a script and the modules of its own code; other libraries' source is not read."""

    files: tuple[str, ...] = ()
    """Paths of all modules that were read, the script first."""
    names: tuple[Use, ...] = ()
    """TensorFlow's, Keras's and Horovod's names, each once, at its first place."""
    libraries: frozenset[str] = frozenset()
    """Top-level packages that are imported and not part of the code."""
    uris: tuple[Use, ...] = ()
    """Constants that begin with a bucket's URI, except in help texts and messages."""
    chief_only: tuple[Use, ...] = ()
    """Comparisons of a role with 'chief', if nothing treats worker 0 as the chief."""
    master_only: tuple[Use, ...] = ()
    """The same with 'master', if nothing speaks of 'chief'."""
    tf_config: tuple[Use, ...] = ()
    """Keys of TF_CONFIG that are read with `[…]`, dotted (`task.trial`); "" is TF_CONFIG itself."""
    by_index: tuple[Use, ...] = ()
    """What is decided by `index == 0` alone, if nothing speaks of roles."""
    own_addresses: tuple[Use, ...] = ()
    """`localhost:PORT` that the script gives to its own tasks."""
    written: tuple[Use, ...] = ()
    """Absolute paths that calls write to (`script/saving`)."""
    saves: tuple[Use, ...] = ()
    """Calls by which TensorFlow writes checkpoints from where the variables are
    (`script/saving`)."""
    reads_back: bool = False
    """Whether it exports what its checkpoints hold."""
    default_collectives: tuple[Use, ...] = ()
    """Calls of MultiWorkerMirroredStrategy that do not say how gradients are exchanged."""
    arguments: Arguments = field(default_factory=Arguments)
    unreadable: tuple[Use, ...] = ()
    """Files that this Python cannot parse; `name` is its reason."""


def together(programs: Sequence[ScriptFacts]) -> ScriptFacts:
    """Facts on several programs of one run; their arguments are those of the first."""
    first, *others = programs
    if not others:
        return first
    once = ("names", "libraries", "reads_back", "arguments")
    lists = [each.name for each in fields(ScriptFacts) if each.name not in once]
    return ScriptFacts(
        names=first_uses(use for facts in programs for use in facts.names),
        libraries=frozenset().union(*(facts.libraries for facts in programs)),
        reads_back=any(facts.reads_back for facts in programs),
        arguments=first.arguments,
        **{
            name: tuple(dict.fromkeys(use for facts in programs for use in getattr(facts, name)))
            for name in lists
        },
    )


def first_uses(uses: Iterable[Use]) -> tuple[Use, ...]:
    """Each name at its first place, of those where it is sure if there is one."""
    found: dict[str, Use] = {}
    for use in uses:
        if use.name not in found or (use.sure and not found[use.name].sure):
            found[use.name] = use
    return tuple(found.values())


# ── the strategy that a script was written for ───────────────────────────────


def strategy_in(facts: ScriptFacts) -> str | None:
    """The name for `strategy:` of a config; None if the script uses none or may use several."""
    found = strategies_in(facts)
    return next(iter(found)) if len(found) == 1 else None


def strategies_in(facts: ScriptFacts) -> dict[str, Use]:
    """Each strategy that the script uses, with its first place; in the order of the script."""
    found: dict[str, Use] = {}
    for use in facts.names:
        for strategy in STRATEGIES.values():
            if any(fnmatchcase(use.name, pattern) for pattern in strategy.uses):
                found.setdefault(strategy.name, use)
    return found
