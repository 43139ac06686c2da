"""Names that only some releases of TensorFlow have."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.script.facts import ScriptFacts, Use

Release = tuple[int, int]

NEWEST: Release = (9, 99)
OLDEST: Release = (0, 0)


@dataclass(frozen=True, kw_only=True)
class MissingName:
    """A name of a script that the release does not have."""

    name: str
    """The name, or the module that it is in."""
    use: Use
    first: Release
    last: Release

    def __str__(self) -> str:
        first, last = ("{}.{}".format(*each) for each in (self.first, self.last))
        if self.first == OLDEST:
            return f"TensorFlow {last} was the last with it"
        if self.last == NEWEST:
            return f"TensorFlow {first} was the first with it"
        return f"TensorFlow {first} to {last} have it"

    @property
    def advised(self) -> str:
        """Version for `setup.tensorflow`."""
        return "{}.{}".format(*(self.first if self.last == NEWEST else self.last))


# First and last release. Sources, seen on 2026-11-22:
# - tf.contrib, and names of TensorFlow 1 that 2.0 moved to tf.compat.v1:
#   https://www.tensorflow.org/guide/migrate; those listed here are in tf.compat.v1 of 2.21.0 and
#   not in its tf
# - tensorflow_core: the package of 1.15 to 2.1 in which `tensorflow` only forwards
#   (https://github.com/tensorflow/tensorflow/releases/tag/v2.2.0 moved it back)
# - experimental_run_v2: https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0
# - the stable MultiWorkerMirroredStrategy: the same page
# - Estimator: https://github.com/tensorflow/tensorflow/releases/tag/v2.16.1
_PREFIXES: dict[str, tuple[Release, Release]] = {
    "tensorflow_core": ((1, 15), (2, 1)),
    "tensorflow.contrib": (OLDEST, (1, 15)),
    "tensorflow.estimator": (OLDEST, (2, 15)),
    "tensorflow.compat.v1.estimator": (OLDEST, (2, 15)),
    "tensorflow_estimator": (OLDEST, (2, 15)),
    ".experimental_run_v2": (OLDEST, (2, 3)),
    "tensorflow.distribute.MultiWorkerMirroredStrategy": ((2, 4), NEWEST),
    **dict.fromkeys(
        (
            *("tensorflow.app", "tensorflow.flags", "tensorflow.logging", "tensorflow.gfile"),
            *("tensorflow.placeholder", "tensorflow.Session", "tensorflow.InteractiveSession"),
            *("tensorflow.ConfigProto", "tensorflow.get_variable", "tensorflow.variable_scope"),
            *("tensorflow.global_variables_initializer", "tensorflow.set_random_seed"),
            *("tensorflow.layers", "tensorflow.python_io", "tensorflow.train.Server"),
            *("tensorflow.train.replica_device_setter", "tensorflow.train.Supervisor"),
            *("tensorflow.train.MonitoredTrainingSession", "tensorflow.train.Saver"),
            *("tensorflow.train.AdamOptimizer", "tensorflow.train.GradientDescentOptimizer"),
            *("tensorflow.train.SyncReplicasOptimizer", "tensorflow.train.StopAtStepHook"),
            *("tensorflow.train.get_or_create_global_step", "tensorflow.summary.FileWriter"),
        ),
        (OLDEST, (1, 15)),
    ),
}

METHODS = frozenset(name[1:] for name in _PREFIXES if name.startswith("."))
"""Methods that are known by their name alone, whatever they are called on."""


def missing_in(release: Release, facts: ScriptFacts) -> tuple[MissingName, ...]:
    """Names that the release lacks: the first place of each, in the order of the script."""
    found: dict[str, MissingName] = {}
    for use in facts.names:
        for prefix, (first, last) in _PREFIXES.items():
            if not use.sure or not (use.name == prefix or use.name.startswith(f"{prefix}.")):
                continue
            if not first <= release <= last:
                found.setdefault(prefix, MissingName(name=prefix, use=use, first=first, last=last))
    return tuple(found.values())
