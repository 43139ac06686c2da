"""Other people's programs, with a config for each and the notes that `plan` owes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudtrain.checks.notes import script_notes
from tests.support.offline_checks_parts import written

ROOT = Path(__file__).parents[2]
MULTI = "multi_worker_mirrored"
PS = {"chief": {}, "worker": {"count": 2}, "ps": {}}
TWO: dict[str, Any] = {"chief": {}, "worker": {}}
WORKERS = {"chief": False, "worker": {"count": 2}}
ONE: dict[str, Any] = {"chief": {}}
MACHINE = {"machine": "n1-standard-8"}
RENTED: Mapping[str, Any] = {
    "provider": "gcp",
    "project": "p",
    "placement": ["us-east4-c"],
}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A script with the arguments that its command gives it, and its config."""

    script: str
    strategy: str = MULTI
    nodes: Mapping[str, Any] = field(default_factory=lambda: TWO)
    train: Mapping[str, Any] = field(default_factory=lambda: {"checkpoints": "ckpt"})
    tensorflow: str = "2.21"
    rented: bool = False
    owed: tuple[str, ...] = ()
    """Beginnings of the notes, in any order; all others are false."""

    @property
    def path(self) -> Path:
        return ROOT / self.script.partition(" ")[0]

    def notes(self, folder: Path) -> Sequence[str]:
        """What `plan` says of it. `folder` is for the config."""
        whole = self.path.suffix == ".py"
        code, name = (self.path.parent, self.path.name) if whole else (self.path, "")
        arguments = self.script.partition(" ")[2]
        nodes = {
            role: {**MACHINE, **group} if self.rented and isinstance(group, dict) else group
            for role, group in self.nodes.items()
        }
        config = written(
            folder,
            strategy=self.strategy,
            nodes=nodes,
            setup={"tensorflow": self.tensorflow},
            code={"path": str(code)},
            train={"command": f"python {name} {arguments}", **self.train},
            **(RENTED if self.rented else {}),
        )
        return script_notes(config)

    def judged(self, folder: Path) -> tuple[list[str], list[str], list[str]]:
        """Notes that are right, those that are false, and what is owed and missing."""
        said = self.notes(folder)
        right = [note for note in said if note.startswith(self.owed)]
        missed = [words for words in self.owed if not any(note.startswith(words) for note in said)]
        return right, [note for note in said if note not in right], missed


def noted(script: str, **facts: Any) -> Program:
    return Program(script=f"tests/strangers/noted/{script}", **facts)


def programs() -> Iterator[Program]:
    """All of them: those that run here, and small ones for single notes."""
    yield from RUN
    yield from NOTED


PARAMETER_SERVER: dict[str, Any] = {"strategy": "parameter_server", "nodes": PS}
NO_CHECKPOINTS: Mapping[str, Any] = {}

RUN = (
    Program(script="examples/mirrored.py", strategy="mirrored", nodes=ONE),
    Program(script="examples/multi_worker_mirrored.py --output {output} --epochs 8"),
    Program(script="examples/parameter_server.py --epochs 200", **PARAMETER_SERVER),
    Program(
        script="examples/horovod_keras.py --output {output}",
        strategy="horovod",
        nodes={"worker": {}},
        tensorflow="2.15",
    ),
    Program(script="tests/strangers/keras_fit_experimental.py"),
    Program(script="tests/strangers/ai_platform_trainer.py --job-dir {output} --x=y"),
    Program(script="tests/strangers/custom_loop.py"),
    Program(
        script="tests/strangers/estimator.py",
        owed=("estimator.py:21: tensorflow.estimator is not",),
    ),
    Program(
        script="tests/strangers/estimator_roles.py --model-dir m --output {output}",
        **PARAMETER_SERVER,
        owed=("estimator_roles.py:26: tensorflow.compat.v1.estimator is not",),
    ),
    Program(script="tests/strangers/parameter_server_v2.py", **PARAMETER_SERVER),
    Program(script="tests/strangers/parameter_server_fit.py", **PARAMETER_SERVER),
    Program(script="tests/strangers/tf_config_popped.py"),
    Program(script="tests/strangers/with_evaluator.py", nodes={**TWO, "evaluator": {}}),
    Program(script="tests/strangers/mirrored_notebook.py", strategy="mirrored", nodes=ONE),
    Program(script="tests/strangers/mirrored_custom_training.py", strategy="mirrored", nodes=ONE),
    Program(script="tests/strangers/two_files/main.py", nodes=WORKERS),
    Program(
        script="tests/strangers/between_graph.py --ps_hosts={ps.hosts}",
        strategy="custom",
        nodes={"ps": {}, **TWO},
    ),
    Program(script="tests/strangers/package -m trainer.task --job-dir {output}"),
)
"""They run unchanged: tests/e2e."""

NOTED = (
    noted("asks_for_ps.py"),
    noted("returns_early.py", strategy="mirrored", nodes=ONE),
    noted("requires_ps.py", owed=("requires_ps.py:7: TF_CONFIG has no 'cluster.ps' here",)),
    noted("master_filters.py"),
    noted("master_returns_filters.py"),
    noted("master_or_index.py"),
    noted("master_saves.py", owed=("master_saves.py:10: compares the role with 'master'",)),
    noted("index_decides.py", owed=("index_decides.py:8: decides by the index alone",)),
    noted(
        "resolver_index_decides.py",
        owed=("resolver_index_decides.py:7: decides by the index alone",),
    ),
    noted("index_decides.py", nodes=WORKERS),
    noted("index_logs.py"),
    noted(
        "manager_restarts.py",
        train={"max_restarts": 2},
        owed=("manager_restarts.py:7: CheckpointManager: without `train.checkpoints`",),
    ),
    noted("manager_restarts.py", train={"max_restarts": 2, "checkpoints": "ckpt"}),
    noted("manager_restarts.py", train=NO_CHECKPOINTS),
    noted(
        "localhost_cluster.py",
        rented=True,
        owed=("localhost_cluster.py:9: localhost:12345 is given to the tasks",),
    ),
    noted("localhost_cluster.py"),
    noted(
        "localhost_spec.py --job_name={role} --task_index={index}",
        rented=True,
        strategy="custom",
        nodes={"ps": {}, "worker": {"count": 2}},
        owed=("localhost_spec.py:3: localhost:2222 is given to the tasks",),
    ),
    noted("localhost_fallback.py", rented=True),
    noted(
        "ps_model_checkpoint.py",
        **PARAMETER_SERVER,
        owed=("ps_model_checkpoint.py:11: ModelCheckpoint: each ps writes its part",),
    ),
    noted("ps_model_checkpoint.py", owed=("ps_model_checkpoint.py:7: ",)),
    noted("ps_whole_file.py", **PARAMETER_SERVER),
    noted("ps_io_device.py", **PARAMETER_SERVER),
    noted(
        "ps_monitored.py",
        strategy="custom",
        nodes={**PS, "ps": {"count": 2}},
        train={"checkpoints": "ckpt", "tf_config": True},
        owed=("ps_monitored.py:14: MonitoredTrainingSession: each ps writes its part",),
    ),
    noted(
        "ps_monitored.py",
        strategy="custom",
        nodes=PS,
        train={"checkpoints": "ckpt", "tf_config": True},
    ),
    noted(
        "ps_estimator.py --job-dir model",
        **PARAMETER_SERVER,
        tensorflow="2.15",
        owed=("ps_estimator.py:14: LinearRegressor: each ps writes its part",),
    ),
    noted(
        "only_chief.py", nodes=WORKERS, owed=("only_chief.py:10: compares the role with 'chief'",)
    ),
    noted("only_chief.py"),
    noted("chief_or_worker0.py", nodes=WORKERS),
    noted("chief_logs.py", nodes=WORKERS),
)
"""Not run: small, each for one note or for the silence that a like program deserves."""
