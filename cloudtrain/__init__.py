"""cloudtrain: one YAML file from rented GPU machines to landed TensorFlow results.

From Python: docs/python-api.md. Everything is imported when it is first used."""

from __future__ import annotations

from cloudtrain.core.version import __version__ as __version__

TYPE_CHECKING = False  # importing typing just for this would cost time
if TYPE_CHECKING:
    from cloudtrain.api import check as check
    from cloudtrain.api import down as down
    from cloudtrain.api import fetch as fetch
    from cloudtrain.api import load as load
    from cloudtrain.api import logs as logs
    from cloudtrain.api import plan as plan
    from cloudtrain.api import run as run
    from cloudtrain.api import status as status
    from cloudtrain.api import train as train
    from cloudtrain.api import up as up
    from cloudtrain.artifacts.manifest import Manifest as Manifest
    from cloudtrain.commands.plan import PlannedTask as PlannedTask
    from cloudtrain.commands.plan import PlanReport as PlanReport
    from cloudtrain.commands.status import ClusterStatus as ClusterStatus
    from cloudtrain.commands.status import StatusReport as StatusReport
    from cloudtrain.core.errors import CloudtrainError as CloudtrainError
    from cloudtrain.core.model import Cluster as Cluster
    from cloudtrain.core.model import ClusterConfig as ClusterConfig
    from cloudtrain.core.model import Node as Node
    from cloudtrain.core.protocols import Console as Console
    from cloudtrain.core.protocols import Finding as Finding
    from cloudtrain.core.run_record import Run as Run

_MODULES = {
    "api": ("check", "down", "fetch", "load", "logs", "plan", "run", "status", "train", "up"),
    "core.errors": ("CloudtrainError",),
    "artifacts.manifest": ("Manifest",),
    "core.model": ("Cluster", "ClusterConfig", "Node"),
    "core.protocols": ("Console", "Finding"),
    "core.run_record": ("Run",),
    "commands.plan": ("PlannedTask", "PlanReport"),
    "commands.status": ("ClusterStatus", "StatusReport"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import names on first use: https://peps.python.org/pep-0562/."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
