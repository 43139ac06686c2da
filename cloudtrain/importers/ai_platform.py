"""Maps an AI Platform training job: config.yaml's `trainingInput`, and its submit line.

Fields: https://cloud.google.com/ai-platform/training/docs/reference/rest/v1/projects.jobs"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from cloudtrain.catalog.gpus import canonical_name
from cloudtrain.core.cloud import Cloud, clouds
from cloudtrain.importers import shell_words
from cloudtrain.importers.code_folder import put_image, put_setup_py
from cloudtrain.importers.command_line import (
    is_file,
    line_of,
    name_uris,
    pass_credentials,
    put_code,
    put_command,
)
from cloudtrain.importers.dockerfile import read_dockerfile
from cloudtrain.importers.draft import Draft, Options
from cloudtrain.importers.image_code import put_image_code
from cloudtrain.importers.submit_line import IGNORED, Submit, pairs
from cloudtrain.importers.values import Value, Values, refuse
from cloudtrain.playbooks.tensorflow_releases import newest

ROLES = {"master": "chief", "worker": "worker", "parameterServer": "ps", "evaluator": "evaluator"}
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


def read(draft: Draft, values: Values, options: Options) -> None:
    job, submit = values.at("trainingInput"), options.submit
    if submit is not None:
        _add_flags(draft, job, submit)
    put_job_name(draft, (submit.job if submit else None) or values.take("jobId"))
    put_cloud(draft, submit.flag("project") if submit else None, job.take("region"))
    _put_nodes(draft, job)
    _put_versions(draft, job)
    _put_code(draft, job, submit, options)
    put_rights(draft, job.take("serviceAccount"), job.take("network"))
    output = job.take("jobDir")
    put_store(draft, output)
    _put_command(draft, job, submit, output, options)
    put_scheduling(draft, job.at("scheduling"), "maxRunningTime")
    job.lose("scheduling", "maxWaitTime", why="no counterpart: placement is tried in order")
    job.lose("hyperparameters", why="tuning is not mapped: one run with fixed values is")
    job.lose("encryptionConfig", why="not mapped: disks have the cloud's own encryption")
    values.lose("labels", why="not mapped")
    for key in ("enableWebAccess", "useChiefInTfConfig"):
        job.drop(key)


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
        draft.role(role, count, tier)
        put_machine(draft, role, tier.with_text(machine))
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
    wanted = (count.number if count else None) or 0
    if theirs == "master":
        wanted = 1 if machine or kind or job.has("masterConfig") else 0
    elif count is not None and not count.text.isdecimal():
        draft.lose(count, f"is no number: set nodes.{ours}.count")
    elif not wanted and (machine or kind):
        return
    draft.role(ours, wanted, count)
    if wanted:
        put_machine(draft, ours, machine, kind, number)
        draft.keep(("nodes", ours, "disk_gb"), disk)


def _no_tpu(value: Value) -> Exception:
    return refuse(
        value,
        f"{value.text}: a TPU job is not imported",
        "write the config by hand: `cloudtrain docs strategies` says what it needs",
    )


# ── software ─────────────────────────────────────────────────────────────────


def _put_versions(draft: Draft, job: Values) -> None:
    """A runtime has TensorFlow of its own version, from 1.0 on
    (https://cloud.google.com/ai-platform/training/docs/runtime-version-list)."""
    runtime, python = job.take("runtimeVersion"), job.take("pythonVersion")
    for value in (runtime, python):
        if value is not None and not known(draft, value):
            return
    if runtime is not None:
        comment = f'runtimeVersion; or "{newest()}" with keras: legacy, and without python'
        draft.keep("setup.tensorflow", runtime, comment)
    if python is not None and python.text.startswith("2"):
        draft.lose(python, "Python 2 is not supported: the newest of that TensorFlow is used")
    elif python is not None:
        draft.keep("setup.python", python)


def _put_code(draft: Draft, job: Values, submit: Submit | None, options: Options) -> None:
    folders = (options.here, options.folder)
    packages = submit.all("packages") if submit else []
    listed = [each.with_text(text) for each in packages for text in each.text.split(",")]
    path = submit.flag("package-path") if submit else None
    if path is not None:
        put_package(draft, path, folders, options.base)
    put_packages(draft, [*job.take_list("packageUris"), *listed])
    for theirs in ROLES:
        image = job.take(f"{theirs}Config", "imageUri")
        if image is None or not known(draft, image):
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
    folder = JOB_DIR
    if output is not None and {"ps", "evaluator"} & draft.counts().keys():  # they all use it
        draft.put("shared", "job", output)
        folder = shell_words.ours("shared")
    words = put_arguments(draft, own_arguments or arguments, output, folder)
    if output is not None:
        words += ["--job-dir", folder]
    for theirs in ROLES:
        for key in ("containerCommand", "containerArgs"):
            job.lose(f"{theirs}Config", key, why="not mapped: one command for all roles")
    if module is not None:
        put_found_package(draft, module.text, (options.here, options.folder), options.base)
        if known(draft, module):
            draft.put("train.command", line_of(["python", "-m", module.text, *words]), module)
            pass_credentials(draft, words, module)
    elif own or draft.container:
        base = own or list(draft.container)
        put_command(draft, [*base, *words], config.whole() or output)


# ── Vertex AI's jobs, too: place, store, rights, package, arguments ──────────


JOB_DIR = f"{shell_words.ours('output')}/job"


def put_job_name(draft: Draft, name: Value | None) -> None:
    """The job's name, without the parts that the submitting shell adds."""
    if name is not None:
        known(draft, name)
        draft.put("name", shell_words.without_marks(name.text), name)


def put_cloud(draft: Draft, project: Value | None, region: Value | None) -> None:
    cloud = cloud_of_google()
    draft.put("provider", cloud.name)
    if project is not None and known(draft, project):
        draft.keep("project", project)
    if region is not None and known(draft, region):
        draft.put("placement", [region.text], region)


def known(draft: Draft, value: Value) -> bool:
    """False, and reported, for a value with a variable of the submitting shell."""
    names = shell_words.unknown(value.text)
    for name in dict.fromkeys(names):
        draft.lose(value, f"{name} of the submitting shell is not known here: fill in its value")
    return not names


def put_store(draft: Draft, output: Value | None) -> None:
    """The artifacts' store; a local output folder is no store. What the submitting shell alone
    knows of it is to be filled in; the rest stays."""
    if output is None:
        return
    uri = shell_words.quoted(output.text.rstrip("/"))
    unknown = dict.fromkeys(name for name in shell_words.unknown(uri) if ":-" not in name)
    if not uri.startswith(("gs://", shell_words.VARIABLE[0])):
        draft.lose(output, "is no gs:// URI: set artifacts.store")
        return
    for name in unknown:
        draft.lose(output, f"{name} of the submitting shell: export it, or fill in its value")
    text = shell_words.marked_text(shell_words.literal(_with_bucket(uri)))
    comment = f"{', '.join(unknown)} of the submitting shell" if unknown else ""
    draft.put("artifacts.store", text, output, comment, fill_in=bool(unknown))


def _with_bucket(uri: str) -> str:
    """A bucket that the submitting shell alone knows is called as in the templates until it is
    set."""
    opening, closing = shell_words.VARIABLE
    if uri.startswith(opening):
        return re.sub(rf"^{opening}(\w+){closing}", rf"{opening}\1:-gs://my-bucket{closing}", uri)
    bucket, slash, rest = uri.removeprefix("gs://").partition("/")
    bucket = re.sub(rf"{opening}(\w+){closing}", rf"{opening}\1:-my-bucket{closing}", bucket)
    bucket = re.sub("\ue002[^\ue003]*\ue003", "my-bucket", bucket)
    return f"gs://{bucket}{slash}{rest}"


def put_rights(draft: Draft, account: Value | None, network: Value | None) -> None:
    if account is not None and known(draft, account):
        draft.keep("identity", account, "for scripts that use buckets themselves")
    if network is not None and known(draft, network):
        name = network.text.rpartition("/")[2]
        draft.lose(network, f"choose a subnet of {name} with network.subnet")


def put_arguments(
    draft: Draft, arguments: list[Value], output: Value | None, folder: str = JOB_DIR
) -> list[str]:
    """The script's arguments: what it writes below the job's folder goes to {output}."""
    base = shell_words.quoted(output.text.rstrip("/")) if output else ""
    found = []
    for value in arguments:
        text = value.text
        if base.startswith(("gs://", shell_words.VARIABLE[0])) and base in shell_words.quoted(text):
            whole = rf"{re.escape(base)}(?=/|$)"
            text = re.sub(whole, lambda _: folder, shell_words.quoted(text))
        for name in dict.fromkeys(shell_words.unknown(text)):
            if ":-" not in name:
                why = f"{name} of the submitting shell: export it, or fill in its value"
                draft.lose(value, why)
        name_uris(draft, value, text)
        found.append(text)
    return found


def put_package(draft: Draft, path: Value, folders: tuple[Path, ...], base: Path) -> None:
    """`--package-path multi/trainer`: its parent is the code, with setup.py's packages."""
    if not known(draft, path):
        return
    package = next((f / path.text for f in folders if (f / path.text).is_dir()), None)
    if package is None:
        draft.lose(path, f"no folder {path.text}: set code.path to its parent")
        return
    folder = package.resolve().parent
    put_code(draft, folder, base, path)
    put_setup_py(draft, folder)


def put_packages(draft: Draft, uris: list[Value]) -> None:
    """Built packages: their source is what is delivered here."""
    for uri in uris:
        if known(draft, uri):
            draft.lose(
                uri, f"{uri.text} is a built package: set code.path or code.git to its source"
            )


def put_found_package(draft: Draft, module: str, folders: tuple[Path, ...], base: Path) -> None:
    """Without a package path: the folder here in which the module is."""
    if draft.has("code") or not re.fullmatch(r"[A-Za-z_][\w.]*", module):
        return
    for folder in folders:
        file = folder.joinpath(*module.split("."))
        if is_file(file.with_name(f"{file.name}.py")) or is_file(file / "__main__.py"):
            put_code(draft, folder.resolve(), base, None)
            put_setup_py(draft, folder)
            return


def put_scheduling(draft: Draft, scheduling: Values, running: str) -> None:
    """The longest run; its nodes live an hour longer, for boot and landing."""
    limit = scheduling.take(running)
    if limit is None:
        return
    seconds = re.fullmatch(r"([0-9]{1,8})(\.[0-9]+)?s", limit.text)
    if not seconds or int(seconds[1]) == 0:
        draft.lose(limit, "is no duration such as 7200s: set train.deadline")
        return
    draft.put("train.deadline", f"{seconds[1]}s", limit)
    draft.put("limits.max_lifetime", f"{int(seconds[1]) + 3600}s", limit, "the run and an hour")


# ── Maps machine types and accelerators of Google's training services ─────────────────────────
# Scale tiers and legacy machine types, with the Compute Engine types that they stood for:
# https://cloud.google.com/ai-platform/training/docs/machine-types


Machine = tuple[str, str, int]
"""Machine type, accelerator, number of accelerators."""

LEGACY: Mapping[str, Machine] = {
    "standard": ("n1-standard-4", "", 0),
    "large_model": ("n1-highmem-8", "", 0),
    "complex_model_s": ("n1-highcpu-8", "", 0),
    "complex_model_m": ("n1-highcpu-16", "", 0),
    "complex_model_l": ("n1-highcpu-32", "", 0),
    "standard_gpu": ("n1-standard-8", "K80", 1),
    "complex_model_m_gpu": ("n1-standard-16", "K80", 4),
    "complex_model_l_gpu": ("n1-standard-32", "K80", 8),
    "standard_p100": ("n1-standard-8", "P100", 1),
    "complex_model_m_p100": ("n1-standard-16", "P100", 4),
    "standard_v100": ("n1-standard-8", "V100", 1),
    "large_model_v100": ("n1-highmem-8", "V100", 1),
    "complex_model_m_v100": ("n1-standard-16", "V100", 4),
    "complex_model_l_v100": ("n1-standard-32", "V100", 8),
}

TIERS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "BASIC": {"chief": (1, "n1-standard-4")},
    "BASIC_GPU": {"chief": (1, "standard_gpu")},
    "STANDARD_1": {
        "chief": (1, "n1-highcpu-8"),
        "worker": (4, "n1-highcpu-8"),
        "ps": (3, "n1-standard-4"),
    },
    "PREMIUM_1": {
        "chief": (1, "n1-highcpu-16"),
        "worker": (19, "n1-highcpu-16"),
        "ps": (11, "n1-highmem-8"),
    },
}
"""Scale tier → role → number and machine type."""

TPUS = ("cloud_tpu", "BASIC_TPU")


def cloud_of_google() -> Cloud:
    return next(cloud for cloud in clouds() if cloud.store_scheme == "gs")


def put_machine(
    draft: Draft,
    role: str,
    machine: Value | None,
    kind: Value | None = None,
    count: Value | None = None,
) -> None:
    """The machine and accelerator of a role: a Compute Engine type, or a legacy one."""
    name = machine.text if machine else ""
    kind_name, number = (kind.text if kind else ""), (count.number if count else None) or 0
    if name in LEGACY:
        name, built_in, built_in_number = LEGACY[name]
        kind_name, number = kind_name or built_in, number or built_in_number
    if kind_name.upper().startswith("TPU"):
        draft.tpu = True
        assert kind
        draft.lose(kind, f"{kind_name}: a TPU is not mapped; see `cloudtrain docs strategies`")
        kind_name = ""
    if name:
        comment = f"was {machine.text}" if machine and machine.text in LEGACY else ""
        draft.put(("nodes", role, "machine"), name, machine, comment)
    origin = kind or machine
    if kind_name and kind_name != "ACCELERATOR_TYPE_UNSPECIFIED" and origin:
        put_accelerator(draft, role, kind_name, max(number, 1), origin)


def put_accelerator(draft: Draft, role: str, kind: str, number: int, origin: Value) -> None:
    """An accelerator by any spelling; one that is no longer offered is replaced, and named."""
    name, comment = canonical_name(kind), ""
    for family in cloud_of_google().families:
        if family.kind == name and not family.machines and family.gone(date.today()):
            comment = f"was {name}:{number}"
            lost = f"{name} is retired: the cloud no longer offers it; {family.instead} instead"
            draft.lose(origin, lost)
            name, number = canonical_name(family.instead), min(number, 4)
    draft.gpus = max(draft.gpus, number)
    draft.put(("nodes", role, "accelerator"), f"{name}:{number}", origin, comment)
