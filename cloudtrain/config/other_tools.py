"""Recognizes another tool's file by its content, so that an error can say what it is.

The keys are those of the tools' own references, which `docs/import.md` links."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.config.yaml_source import Block, Scalar, documents

Tree = Mapping[str, Any]
"""A document: the text of each value that is no list or mapping."""

_OWN = ("strategy", "train", "artifacts", "placement")
"""Keys of a config of ours: one with mistakes is no other tool's file."""
_INIT = "`cloudtrain init` writes a config to start from"
_TABLE = f"`cloudtrain docs import` has a table of what goes where; {_INIT}"


@dataclass(frozen=True, kw_only=True)
class OtherTool:
    """File of another tool: text on what it is, and the way on."""

    what: str
    hint: str
    is_imported: bool = False
    """`cloudtrain import` reads it."""

    def way(self, file: str) -> str:
        """The hint for this file."""
        if self.is_imported:
            return f"`cloudtrain import {file}` makes a config of it"
        return self.hint.replace("FILE", file)


def tool_of(data: bytes) -> OtherTool | None:
    """Whose file it is; None for one of ours, and for what is not recognized."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    trees = [_tree(found) for found in documents(text) if isinstance(found, Block)]
    if any(key in tree for tree in trees for key in _OWN):
        return None
    for pattern, what, hint in _TEXTS:
        if re.search(pattern, text, re.MULTILINE):
            return OtherTool(what=what, hint=hint)
    if re.search(r"^\[cluster\]", text, re.MULTILINE):
        return OtherTool(what="an INI file with [cluster]", hint="", is_imported=True)
    return next((found for tree in trees for row in _ROWS if (found := row(tree))), None)


def _tree(block: Block) -> Tree:
    return {
        key: value.source if isinstance(value, Scalar) else value for key, value in block.items()
    }


_TEXTS = (
    (r"^#SBATCH\s", "a batch script of Slurm (sbatch)", _TABLE),
    (r"^#PBS\s", "a batch script of PBS", _TABLE),
    (r"^#BSUB\s", "a batch script of LSF", _TABLE),
    (r"^\s*(from|import) sagemaker\b", "a script of SageMaker's SDK", _TABLE),
    (r"^\s*(from|import) (azure\.ai\.ml|azureml)\b", "a script of Azure ML's SDK", _TABLE),
    (
        r"^(?!\s*#).*\bgcloud\s[^\n]*\b(ai-platform|ml-engine|custom-jobs)\b",
        "a shell script that submits a job",
        'pass its line: `cloudtrain import --submit "$(cat FILE)"`',
    ),
    (r'\A\s*\{(.|\n)*"nbformat"\s*:', "a notebook", f"export its code to a .py file; {_INIT}"),
    (
        r"\A(\s*|#.*\n|ARG .*\n)*FROM \S+",
        "a Dockerfile",
        f"`import` reads it beside the job that names its image; {_INIT}",
    ),
    (r"\A#!.*\b(sh|bash|zsh)\b", "a shell script", f"its lines belong in `train.command`; {_INIT}"),
    (
        r"\A#!.*\bpython|^(import|from) [a-zA-Z_][\w.]*( import .+| as \w+)?$",
        "a Python program",
        f"`train: {{command: python FILE}}` of a config starts it; {_INIT}",
    ),
)
"""Pattern of its text, what it is, hint."""


def _importable(tree: Tree) -> OtherTool | None:
    kind = str(tree.get("kind", "")).lower()
    job = tree.get("jobSpec", tree.get("job_spec"))
    specs = ("workerPoolSpecs", "worker_pool_specs")
    whats = {
        "an AI Platform training job": "trainingInput" in tree,
        "a Vertex AI CustomJob": any(key in tree for key in specs) or isinstance(job, Mapping),
        "a TFJob": kind == "tfjob",
        "a compose file": isinstance(tree.get("services"), Mapping),
    }
    what = next((what for what, holds in whats.items() if holds), None)
    return OtherTool(what=what, hint="", is_imported=True) if what else None


def _kubernetes(tree: Tree) -> OtherTool | None:
    kind = str(tree.get("kind", ""))
    if not kind or "apiVersion" not in tree:
        return None
    name = "of Ray" if "ray.io" in str(tree["apiVersion"]) else "of Kubernetes"
    name = "of SageMaker" if "sagemaker" in str(tree["apiVersion"]) else name
    return OtherTool(what=f"a {kind} {name}", hint=f"`import` reads TFJobs; {_TABLE}")


def _page(what: str, page: str) -> OtherTool:
    hint = f"`cloudtrain docs {page}` has the counterpart of each field; {_INIT}"
    return OtherTool(what=what, hint=hint)


def _dstack(tree: Tree) -> OtherTool | None:
    kinds = ("task", "dev-environment", "service", "fleet", "volume", "gateway")
    kind = tree.get("type")
    return _page(f"a dstack {kind}", "from-dstack") if kind in kinds else None


def _skypilot(tree: Tree) -> OtherTool | None:
    own = ("resources", "num_nodes", "workdir", "file_mounts", "envs", "setup", "run", "service")
    found = [key for key in own if key in tree]
    if isinstance(tree.get("run"), str) and len(found) > 1:
        return _page("a SkyPilot task", "from-skypilot")
    resources = tree.get("resources")
    keys = {"accelerators", "cloud", "infra", "instance_type", "use_spot", "any_of", "ordered"}
    if isinstance(resources, Mapping) and keys & set(resources):
        return _page("a SkyPilot task", "from-skypilot")
    return None


def _ray(tree: Tree) -> OtherTool | None:
    cluster = ("available_node_types", "head_node_type", "head_start_ray_commands", "head_node")
    if "cluster_name" in tree and (any(k in tree for k in cluster) or "provider" in tree):
        return OtherTool(what="a Ray cluster", hint=_TABLE)
    own = ("runtime_env", "compute_config", "entrypoint_num_cpus", "entrypoint_num_gpus")
    if "entrypoint" in tree and any(key in tree for key in own):
        return OtherTool(what="a Ray job", hint=_TABLE)
    return None


def _sagemaker(tree: Tree) -> OtherTool | None:
    own = ("TrainingJobName", "AlgorithmSpecification", "TrainingJobDefinition")
    if any(key in tree for key in own):
        return OtherTool(what="a SageMaker training job", hint=_TABLE)
    return None


def _azure_ml(tree: Tree) -> OtherTool | None:
    schema = str(tree.get("$schema", ""))
    kind = tree.get("type")
    kinds = ("command", "pipeline", "sweep")
    own = any("azureml:" in str(tree.get(key, "")) for key in ("compute", "environment"))
    job = kind in kinds and any(key in tree for key in ("compute", "environment", "jobs"))
    if "azuremlschemas" in schema or own or job:
        return OtherTool(what=f"an Azure ML {kind or 'command'} job", hint=_TABLE)
    return None


def _others(tree: Tree) -> OtherTool | None:
    whats = {
        "an AWS Batch job": "containerProperties" in tree or "jobDefinitionName" in tree,
        "a Google Cloud Batch job": "taskGroups" in tree,
        "a pipeline of Vertex AI": "pipelineSpec" in tree or "pipelineInfo" in tree,
        "a pipeline of SageMaker": "Steps" in tree and "Version" in tree,
        "a Determined experiment": "searcher" in tree and "entrypoint" in tree,
    }
    what = next((what for what, holds in whats.items() if holds), None)
    return OtherTool(what=what, hint=_TABLE) if what else None


_ROWS: tuple[Callable[[Tree], OtherTool | None], ...] = (
    *(_importable, _kubernetes, _dstack, _azure_ml, _ray, _sagemaker, _skypilot, _others),
)
