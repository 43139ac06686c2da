"""Maps an AI Platform training job: config.yaml's `trainingInput`, and its submit line.

Fields: https://cloud.google.com/ai-platform/training/docs/reference/rest/v1/projects.jobs
"""

from __future__ import annotations

import re
from pathlib import Path

from cloudtrain.importers import google_job
from cloudtrain.importers.code_folder import put_image
from cloudtrain.importers.command_line import line_of, pass_credentials, put_command
from cloudtrain.importers.dockerfile import read_dockerfile
from cloudtrain.importers.draft import Draft
from cloudtrain.importers.image_code import put_image_code
from cloudtrain.importers.machines import TIERS, TPUS, put_machine
from cloudtrain.importers.options import Options
from cloudtrain.importers.submit_line import IGNORED, Submit, pairs
from cloudtrain.importers.values import Value, Values, refuse

ROLES = {
    "master": "chief",
    "worker": "worker",
    "parameterServer": "ps",
    "evaluator": "evaluator",
}
"""AI Platform's word for a role → ours."""

_FLAGS = {
    "scale-tier": "scaleTier",
    "master-machine-type": "masterType",
    "worker-machine-type": "workerType",
    "parameter-server-machine-type": "parameterServerType",
    "worker-count": "workerCount",
    "parameter-server-count": "parameterServerCount",
    "region": "region",
    "runtime-version": "runtimeVersion",
    "python-version": "pythonVersion",
    "job-dir": "jobDir",
    "module-name": "pythonModule",
    "service-account": "serviceAccount",
    "network": "network",
    "use-chief-in-tf-config": "useChiefInTfConfig",
    "max-running-time": "scheduling.maxRunningTime",
    "max-wait-time": "scheduling.maxWaitTime",
}
_ROLE_FLAGS = {"master": "master", "worker": "worker", "parameter-server": "parameterServer"}


def is_ai_platform(values: Values) -> bool:
    return values.has("trainingInput")


def read_ai_platform(values: Values, submit: Submit | None, options: Options) -> Draft:
    draft = Draft(kind="an AI Platform training job", file=values.file)
    job = values.at("trainingInput")
    if submit is not None:
        _add_flags(draft, job, submit)
    name = submit.job if submit else None
    name = name or values.take("jobId")
    google_job.put_name(draft, name)
    google_job.put_cloud(draft, submit.flag("project") if submit else None, job.take("region"))
    _put_nodes(draft, job)
    _put_versions(draft, job)
    _put_code(draft, job, submit, options)
    google_job.put_rights(draft, job.take("serviceAccount"), job.take("network"))
    output = job.take("jobDir")
    google_job.put_store(draft, output)
    _put_command(draft, job, submit, output, options)
    google_job.put_scheduling(draft, job.at("scheduling"), "maxRunningTime")
    job.lose("scheduling", "maxWaitTime", why="no counterpart: placement is tried in order")
    job.lose("hyperparameters", why="tuning is not mapped: one run with fixed values is")
    job.lose("encryptionConfig", why="not mapped: disks have the cloud's own encryption")
    values.lose("labels", why="not mapped")
    for key in ("enableWebAccess", "useChiefInTfConfig"):
        job.drop(key)
    values.rest()
    draft.problems += values.problems
    return draft


def _add_flags(draft: Draft, job: Values, submit: Submit) -> None:
    """Put each flag where config.yaml has the same; a flag wins."""
    for name, value in submit.flags:
        role, _, what = name.rpartition("-accelerator")
        image = name.removesuffix("-image-uri")
        if name in _FLAGS:
            job.put(tuple(_FLAGS[name].split(".")), value)
        elif role in _ROLE_FLAGS and not what:
            for key, part in pairs(value).items():
                job.put((f"{_ROLE_FLAGS[role]}Config", "acceleratorConfig", key), part)
        elif name.endswith("-image-uri") and image in _ROLE_FLAGS:
            job.put((f"{_ROLE_FLAGS[image]}Config", "imageUri"), value)
        elif name not in ("package-path", "packages", "project") and name not in IGNORED:
            draft.lose(value, "not mapped")


# ── nodes ────────────────────────────────────────────────────────────────────


def _put_nodes(draft: Draft, job: Values) -> None:
    tier = job.take("scaleTier")
    name = re.sub(r"\W", "_", tier.text).upper() if tier else ""
    if tier is not None and name in TPUS:
        raise _no_tpu(tier)
    if tier is not None and name not in ("CUSTOM", *TIERS):
        draft.lose(tier, f"{tier.text} is no scale tier: set `nodes:`")
    for role, (count, machine) in TIERS.get(name, {}).items():
        assert tier
        origin = Value(text=machine, file=tier.file, line=tier.line, field=tier.field)
        draft.role(role, count, tier)
        put_machine(draft, role, origin)
    for theirs, ours in ROLES.items():
        _put_role(draft, job, theirs, ours)
    if not draft.has("nodes", "chief"):
        draft.role("chief", 1)


def _put_role(draft: Draft, job: Values, theirs: str, ours: str) -> None:
    config = job.at(f"{theirs}Config")
    machine, count = job.take(f"{theirs}Type"), job.take(f"{theirs}Count")
    if machine is not None and machine.text in TPUS:
        raise _no_tpu(machine)
    kind = config.take("acceleratorConfig", "type")
    number = config.take("acceleratorConfig", "count")
    config.lose("tpuTfVersion", why="a TPU is not mapped")
    disk = config.take("diskConfig", "bootDiskSizeGb")
    wanted = int(count.text) if count and count.text.isdecimal() and len(count.text) < 6 else 0
    if theirs == "master":
        wanted = 1 if machine or kind or job.has("masterConfig") else 0
    elif count is not None and not count.text.isdecimal():
        draft.lose(count, f"is no number: set nodes.{ours}.count")
    elif not wanted and (machine or kind):
        return
    draft.role(ours, wanted, count)
    if wanted:
        put_machine(draft, ours, machine, kind, number)
        draft.put(("nodes", ours, "disk_gb"), disk.text if disk else None, disk)


def _no_tpu(value: Value) -> Exception:
    return refuse(
        value,
        f"{value.text}: a TPU job is not imported",
        "write the config by hand: `cloudtrain docs strategy-tpu` says what it needs",
    )


# ── software ─────────────────────────────────────────────────────────────────


def _put_versions(draft: Draft, job: Values) -> None:
    """A runtime has TensorFlow of its own version, from 1.0 on
    (https://cloud.google.com/ai-platform/training/docs/runtime-version-list)."""
    runtime, python = job.take("runtimeVersion"), job.take("pythonVersion")
    for value in (runtime, python):
        if value is not None and not google_job.known(draft, value):
            return
    if runtime is not None:
        draft.put(
            "setup.tensorflow",
            runtime.text,
            runtime,
            'runtimeVersion; or "2.21" with keras: legacy, and without python',
        )
    if python is not None and python.text.startswith("2"):
        draft.lose(python, "Python 2 is not supported: the newest of that TensorFlow is used")
    elif python is not None:
        draft.put("setup.python", python.text, python)


def _put_code(draft: Draft, job: Values, submit: Submit | None, options: Options) -> None:
    folders = (options.here, options.folder)
    packages = submit.all("packages") if submit else []
    listed = [
        Value(text=text, file=value.file, line=value.line, field=value.field)
        for value in packages
        for text in value.text.split(",")
    ]
    path = submit.flag("package-path") if submit else None
    if path is not None:
        google_job.put_package(draft, path, folders, options.base)
    google_job.put_packages(draft, [*job.take_list("packageUris"), *listed])
    for theirs in ROLES:
        image = job.take(f"{theirs}Config", "imageUri")
        if image is None or not google_job.known(draft, image):
            continue
        if theirs == "master":
            _put_container(draft, image, folders, options.base)
        else:
            draft.lose(image, f"the image {image.text} is not used: `setup:` is the same for all")


def _put_container(draft: Draft, image: Value, folders: tuple[Path, ...], base: Path) -> None:
    """An image is built by a Dockerfile, which may be here."""
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        found = read_dockerfile(draft, folder / "Dockerfile")
        if found is not None:
            put_image_code(draft, found, folder, base, image)
            draft.container = (*found.entrypoint, *found.command)
            draft.lose(image, f"the image is not used: {folder / 'Dockerfile'} is mapped instead")
            return
    put_image(draft, image)


# ── the command ──────────────────────────────────────────────────────────────


def _put_command(
    draft: Draft, job: Values, submit: Submit | None, output: Value | None, options: Options
) -> None:
    module = job.take("pythonModule")
    arguments = job.take_list("args")
    if submit is not None and submit.arguments:
        arguments = list(submit.arguments)
    config = job.at("masterConfig")
    own = [value.text for value in config.take_list("containerCommand")]
    own_arguments = config.take_list("containerArgs")
    words = google_job.put_arguments(draft, own_arguments or arguments, output)
    if output is not None:
        words += ["--job-dir", google_job.JOB_DIR]
    for theirs in ROLES:
        for key in ("containerCommand", "containerArgs"):
            job.lose(f"{theirs}Config", key, why="not mapped: one command for all roles")
    if module is not None:
        google_job.put_found_package(
            draft, module.text, (options.here, options.folder), options.base
        )
        if google_job.known(draft, module):
            draft.put("train.command", line_of(["python", "-m", module.text, *words]), module)
            pass_credentials(draft, words, module)
    elif own or draft.container:
        base = own or list(draft.container)
        put_command(draft, [*base, *words], config.whole() or output)
