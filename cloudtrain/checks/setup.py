"""What is wrong with `setup:`, by the tables and the files that it names."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cloudtrain.checks.package_index import missing_release
from cloudtrain.config import requirement_forms, requirements
from cloudtrain.config.location import placed
from cloudtrain.core.errors import CloudtrainError, ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.playbooks import code_packages, folder, horovod, tensorflow


def setup(config: ClusterConfig) -> str:
    """What is installed, in words. Raises ConfigError, UsageError."""
    wrong = setup_problems(config)
    if wrong:
        raise ConfigError(wrong)
    version = config.setup.tensorflow
    missing = missing_release(version) if version else None
    if missing is not None:
        raise UsageError(missing, hint="set `setup.tensorflow` to one that it has")
    also = [*config.setup.install]
    if config.setup.requirements:
        also.insert(0, config.setup.requirements)
    text = " and ".join([f"TensorFlow {version}" if version else "none", *also])
    notes = (tensorflow.newer_note(config), tensorflow.keras_note(config))
    return "; ".join(filter(None, [text, *notes]))


def setup_problems(config: ClusterConfig) -> tuple[Problem, ...]:
    """Versions that cannot be installed, alone or together, and requirements that cannot be read
    or installed.
    """
    found = [*tensorflow.problems(config), *horovod.problems(config)]
    try:
        found += requirement_forms.problems(config)
    except ConfigError as error:
        found += error.problems
    if code_packages.named(config):
        found += code_packages.problems(config, _delivered(config))
    return tuple(placed(config, problem) for problem in found)


def _delivered(config: ClusterConfig) -> frozenset[str] | None:
    """Paths in the delivered code; None for code of a git server, or if a folder cannot be read,
    which the finding on the code reports.
    """
    if config.code.path is None or config.code.git is not None:
        return None
    try:
        root = config.folder / Path(config.code.path).expanduser()
        return frozenset(entry.path for entry in folder.entries(config, root))
    except CloudtrainError:
        return None


def setup_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Lines of requirements that give way to `setup.tensorflow`."""
    with suppress(ConfigError):  # a finding of its own
        return requirements.left_out_notes(config)
    return ()
