"""Recognizes another tool's file by its content, so that an error can say what it is.

The keys are those of the tools' own references, which `docs/import.md` links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloudtrain.core.dataclass import dataclass

Tree = Mapping[str, Any]
"""A document: the text of each value that is no list or mapping."""

_OWN = ("strategy", "train", "artifacts", "placement")
"""Keys of a config of ours: one with mistakes is no other tool's file."""
_INIT = "`cloudtrain init` writes a config to start from"
_TABLE = f"`cloudtrain docs import` says what goes where; {_INIT}"


@dataclass(frozen=True, kw_only=True)
class ImportedKind:
    """A kind of file that `cloudtrain import` reads; docs/import.md has a section of its name."""

    name: str
    module: str
    """Of importers/: its `read` fills the draft of a config."""
    title: str
    """What a read file is."""
    form: str
    """What the user may give, and in brackets how it is recognized."""
    what: str = ""
    """What an unread file is, if that is not its title."""
    holds: Callable[[Tree, str], bool]
    """Recognizes a document by its keys, or a text that is none."""
    submit: str = ""
    """Beginning of a line that submits such a job, for `--submit`."""
    among_others: bool = False
    """True if it is read from a file that has other documents too."""


IMPORTED = (
    ImportedKind(
        name="AI Platform",
        module="ai_platform",
        title="an AI Platform training job",
        form="an AI Platform config.yaml (trainingInput:)",
        holds=lambda tree, _: "trainingInput" in tree,
        submit="gcloud ai-platform jobs submit training JOB",
    ),
    ImportedKind(
        name="Vertex AI",
        module="vertex",
        title="a Vertex AI CustomJob",
        form="a Vertex AI CustomJob (workerPoolSpecs:)",
        holds=lambda tree, _: (
            not tree.keys().isdisjoint(("workerPoolSpecs", "worker_pool_specs"))
            or isinstance(tree.get("jobSpec", tree.get("job_spec")), Mapping)
        ),
        submit="gcloud ai custom-jobs create",
    ),
    ImportedKind(
        name="Compose",
        module="compose",
        title="a compose file with TF_CONFIG",
        form="a compose file with TF_CONFIG (services:)",
        what="a compose file",
        holds=lambda tree, _: isinstance(tree.get("services"), Mapping),
    ),
    ImportedKind(
        name="TFJob",
        module="tfjob",
        title="a TFJob",
        form="a TFJob (kind: TFJob)",
        holds=lambda tree, _: str(tree.get("kind", "")).lower() == "tfjob",
        among_others=True,
    ),
    ImportedKind(
        name="INI",
        module="ini",
        title="an INI [cluster] file",
        form="an INI file with [cluster]",
        what="an INI file with [cluster]",
        # Its first line that is no comment is a section's: a script may write such a file.
        holds=lambda _, text: (
            re.match(r"([^\S\n]*([#;].*)?\n)*[^\S\n]*\[", text) is not None
            and re.search(r"^\s*\[cluster\]\s*([#;].*)?$", text, re.MULTILINE) is not None
        ),
    ),
)


def kind_of(tree: Tree, text: str) -> ImportedKind | None:
    """The kind of a document, or of a text that is none, if `import` reads it."""
    found = (row for row in IMPORTED if row.holds(_plain(tree), "" if tree else text))
    return next(found, None)


def _plain(tree: Tree) -> Tree:
    from cloudtrain.config.yaml_source import Scalar

    return {key: each.source if isinstance(each, Scalar) else each for key, each in tree.items()}


@dataclass(frozen=True, kw_only=True)
class OtherTool:
    """File of another tool: text on what it is, and the way on."""

    what: str
    hint: str
    is_imported: bool = False
    """`cloudtrain import` reads it."""

    def way(self, file: str) -> str:
        """The hint for this file."""
        return self.hint.replace("FILE", file)


def tool_of(data: bytes) -> OtherTool | None:
    """The tool whose file it is; None for one of ours, and for what is not recognized."""
    from cloudtrain.config.yaml_source import Block, documents  # which --help does not need

    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    trees = [_plain(block) for block in documents(text) if isinstance(block, Block)]
    if any(key in tree for tree in trees for key in _OWN):
        return None
    if not any(kind_of(tree, text) for tree in [*trees, {}]):
        for pattern, what, hint in _TEXTS:
            if re.search(pattern, text, re.MULTILINE):
                return OtherTool(what=what, hint=hint)
    return next((found for tree in [*trees, {}] for found in _tools(tree, text) if found), None)


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


def _tools(tree: Tree, text: str) -> Iterator[OtherTool | None]:
    """Each tool whose keys a document has, the surest first; None for one that it is not."""
    kind, version = str(tree.get("kind", "")), str(tree.get("apiVersion", ""))
    if row := kind_of(tree, text):
        hint = "`cloudtrain import FILE` makes a config of it"
        yield OtherTool(what=row.what or row.title, hint=hint, is_imported=True)

    def has(*keys: str) -> bool:
        return any(key in tree for key in keys)

    if kind and has("apiVersion"):
        name = "Ray" if "ray.io" in version else "Kubernetes"
        name = "SageMaker" if "sagemaker" in version else name
        yield OtherTool(what=f"a {kind} of {name}", hint=f"`import` does not read it; {_TABLE}")
    kinds = ("task", "dev-environment", "service", "fleet", "volume", "gateway")
    if tree.get("type") in kinds:
        yield _page(f"a dstack {tree.get('type')}", "from-dstack")
    yield _known(f"an Azure ML {_azure_kind(tree) or 'command'} job", _azure_kind(tree) is not None)
    heads = ("available_node_types", "head_node_type", "head_start_ray_commands", "head_node")
    yield _known("a Ray cluster", has("cluster_name") and has(*heads, "provider"))
    own = ("runtime_env", "compute_config", "entrypoint_num_cpus", "entrypoint_num_gpus")
    yield _known("a Ray job", has("entrypoint") and has(*own))
    sage_maker = ("TrainingJobName", "AlgorithmSpecification", "TrainingJobDefinition")
    yield _known("a SageMaker training job", has(*sage_maker))
    sky = ("resources", "num_nodes", "workdir", "file_mounts", "envs", "setup", "run", "service")
    runs = isinstance(tree.get("run"), str) and sum(map(has, sky)) > 1
    machines = {"accelerators", "cloud", "infra", "instance_type", "use_spot", "any_of", "ordered"}
    resources = tree.get("resources")
    if runs or (isinstance(resources, Mapping) and machines & set(resources)):
        yield _page("a SkyPilot task", "from-skypilot")
    yield _known("an AWS Batch job", has("containerProperties", "jobDefinitionName"))
    yield _known("a Google Cloud Batch job", has("taskGroups"))
    yield _known("a pipeline of Vertex AI", has("pipelineSpec", "pipelineInfo"))
    yield _known("a pipeline of SageMaker", has("Steps") and has("Version"))
    yield _known("a Determined experiment", has("searcher") and has("entrypoint"))


def _known(what: str, holds: bool) -> OtherTool | None:
    return OtherTool(what=what, hint=_TABLE) if holds else None


def _page(what: str, page: str) -> OtherTool:
    hint = f"`cloudtrain docs {page}` has the counterpart of each field; {_INIT}"
    return OtherTool(what=what, hint=hint)


def _azure_kind(tree: Tree) -> object:
    """The kind of an Azure ML job, "" for one that names none; None for no such job."""
    kind = tree.get("type") or ""
    own = any("azureml:" in str(tree.get(key, "")) for key in ("compute", "environment"))
    keys = any(key in tree for key in ("compute", "environment", "jobs"))
    job = kind in ("command", "pipeline", "sweep") and keys
    return kind if "azuremlschemas" in str(tree.get("$schema", "")) or own or job else None
