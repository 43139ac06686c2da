"""Maps a Vertex AI CustomJob, its CustomJobSpec, and `gcloud ai custom-jobs create`.

Fields: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/CustomJobSpec; pools are roles by
https://cloud.google.com/vertex-ai/docs/training/distributed-training."""

from __future__ import annotations

import re

from cloudtrain.importers import ai_platform, shell_words
from cloudtrain.importers.ai_platform import put_machine
from cloudtrain.importers.command_line import put_code
from cloudtrain.importers.containers import Container, put_containers
from cloudtrain.importers.dockerfile import read_dockerfile
from cloudtrain.importers.draft import Draft, Options, Plain
from cloudtrain.importers.image_code import put_image_code
from cloudtrain.importers.submit_line import IGNORED, WHERE, Submit, pairs
from cloudtrain.importers.values import Value, Values, refuse

ROLES = ("chief", "worker", "ps", "evaluator")
"""By the pool's index."""

RESTARTS = 3
"""Vertex AI's own number of restarts."""

_FOLDERS = {
    "AIP_MODEL_DIR": "model",
    "AIP_CHECKPOINT_DIR": "checkpoints",
    "AIP_TENSORBOARD_LOG_DIR": "logs",
}
"""Variables that Vertex AI sets where there is a baseOutputDirectory
(https://cloud.google.com/vertex-ai/docs/training/code-requirements#environment-variables)."""

_POOL_FLAGS = {
    "machine-type": ("machineSpec", "machineType"),
    "accelerator-type": ("machineSpec", "acceleratorType"),
    "accelerator-count": ("machineSpec", "acceleratorCount"),
    "replica-count": ("replicaCount",),
    "boot-disk-size": ("diskSpec", "bootDiskSizeGb"),
    "boot-disk-type": ("diskSpec", "bootDiskType"),
    "container-image-uri": ("containerSpec", "imageUri"),
    "executor-image-uri": ("pythonPackageSpec", "executorImageUri"),
    "python-module": ("pythonPackageSpec", "pythonModule"),
}
OUTPUT = shell_words.ours("output")
_KNOWN = (*_POOL_FLAGS, "local-package-path", "script", "output-image-uri")


def read(draft: Draft, values: Values, options: Options) -> None:
    """Read a CustomJob. Raises ConfigError without worker pools, or with a TPU's machine."""
    # The Python client writes `worker_pool_specs` for `workerPoolSpecs`.
    values.rename(lambda key: re.sub(r"_([a-z])", lambda found: found[1].upper(), key))
    spec = values.at("jobSpec") if values.has("jobSpec") else values
    submit = options.submit
    if submit is not None:
        _add_flags(draft, values, spec, submit, options)
    ai_platform.put_job_name(draft, values.take("displayName"))
    region = submit.flag("region") if submit else None
    ai_platform.put_cloud(draft, submit.flag("project") if submit else None, region)
    ai_platform.put_rights(draft, spec.take("serviceAccount"), spec.take("network"))
    output = spec.take("baseOutputDirectory", "outputUriPrefix")
    ai_platform.put_store(draft, output)
    if output is not None:
        for name, folder in _FOLDERS.items():
            draft.put(("train", "env", name), f"{{output}}/{folder}", output)
    _put_pools(draft, spec, output, options)
    _put_scheduling(draft, spec.at("scheduling"))
    for key in ("name", "state", "createTime", "enableWebAccess", "enableDashboardAccess"):
        values.drop(key)
        spec.drop(key)
    spec.lose(
        "tensorboard",
        why="not mapped: event files land with the run; `cloudtrain tensorboard` shows them, "
        "also while it goes on",
    )


def _add_flags(
    draft: Draft, values: Values, spec: Values, submit: Submit, options: Options
) -> None:
    """Put each flag where the file has the same; a flag wins."""
    for index, value in enumerate(submit.all("worker-pool-spec")):
        _add_pool(draft, spec.at("workerPoolSpecs", index), value, options)
    whole = {"service-account": ("serviceAccount",), "network": ("network",)}
    pools = spec.names("workerPoolSpecs")
    for name, value in submit.flags:
        if name == "display-name":
            values.put(("displayName",), value)
        elif name in whole:
            spec.put(whole[name], value)
        elif name in ("args", "command"):
            for pool in pools:
                _add_words(spec.at("workerPoolSpecs", pool), name, value)
        elif name == "python-package-uris":
            ai_platform.put_packages(draft, [value])
        elif name not in ("worker-pool-spec", "region", "project") and name not in IGNORED:
            draft.lose(value, "not mapped")


def _add_pool(draft: Draft, pool: Values, value: Value, options: Options) -> None:
    found = pairs(value)
    for name, part in found.items():
        if name in _POOL_FLAGS:
            pool.put(_POOL_FLAGS[name], part)
        elif name not in _KNOWN:
            draft.lose(part, "not mapped")
    if "replica-count" not in found:
        pool.put(("replicaCount",), Value(text="1", file=WHERE, field=value.field))
    path = found.get("local-package-path")
    if path is not None and ai_platform.known(draft, path) and not draft.has("code"):
        put_code(draft, (options.here / path.text).resolve(), options.base, path)
    if "script" in found:
        pool.put(("containerSpec", "command", 0), found["script"].with_text("python"))
        pool.put(("containerSpec", "command", 1), found["script"])


def _add_words(pool: Values, name: str, value: Value) -> None:
    """gcloud's `--args=A,B`; `^;^A;B` has another separator."""
    other = re.match(r"\^(.+?)\^", value.text)
    text = value.text[other.end() :] if other else value.text
    spec = "pythonPackageSpec" if pool.has("pythonPackageSpec", "pythonModule") else "containerSpec"
    at = len(pool.names(spec, name))
    for number, word in enumerate(text.split(other[1] if other else ",")):
        pool.put((spec, name, at + number), value.with_text(word))


def _put_pools(draft: Draft, spec: Values, output: Value | None, options: Options) -> None:
    names = spec.names("workerPoolSpecs")
    pools = {name: spec.at("workerPoolSpecs", name) for name in names if isinstance(name, int)}
    if names and not pools:
        pools = {0: spec.at("workerPoolSpecs")}  # one pool without a list: gcloud takes that, too
    containers: list[Container] = []
    for index, pool in pools.items():
        where = pool.whole()
        assert where
        role = ROLES[index] if index < len(ROLES) else None
        count = pool.take("replicaCount")
        number = count.number if count and count.number is not None else 1
        if role is None or (count is not None and not number):
            pool.lose(why="an empty pool" if role else "there are four pools at most")
            continue
        draft.role(role, number, count)
        machine = pool.at("machineSpec")
        kind, accelerators = machine.take("acceleratorType"), machine.take("acceleratorCount")
        put_machine(draft, role, machine.take("machineType"), kind, accelerators)
        disk = pool.take("diskSpec", "bootDiskSizeGb")
        draft.keep(("nodes", role, "disk_gb"), disk)
        pool.drop("diskSpec", "bootDiskType")
        containers.append(_container(draft, pool, role, where, output, options))
    if not containers:
        where = Value(file=spec.file, line=1, field="workerPoolSpecs")
        raise refuse(where, "has no worker pool: nothing says what to run")
    if draft.tpu:
        raise refuse(containers[0].where, "a TPU job is not imported")
    images = [each.image for each in containers if each.image]
    file = options.folder.resolve() / "Dockerfile"
    dockerfile = read_dockerfile(draft, file) if images else None
    if dockerfile is not None and not draft.has("code"):
        commands = [each.own_words for each in containers]
        put_image_code(draft, dockerfile, file.parent, options.base, images[0], commands=commands)
    put_containers(draft, containers, dockerfile)


def _container(
    draft: Draft, pool: Values, role: str, where: Value, output: Value | None, options: Options
) -> Container:
    package, own = pool.at("pythonPackageSpec"), pool.at("containerSpec")
    module = package.take("pythonModule")
    chosen = package if module is not None else own
    environment: dict[str, Value] = {}
    for at in chosen.names("env"):
        name, value = chosen.text("env", at, "name"), chosen.take("env", at, "value")
        if name and value is not None:
            environment[name] = value
    arguments = ai_platform.put_arguments(draft, chosen.take_list("args"), output, OUTPUT)
    ai_platform.put_packages(draft, package.take_list("packageUris"))
    entrypoint = [value.text for value in own.take_list("command")]
    if module is not None:
        folders = (options.here, options.folder)
        ai_platform.put_found_package(draft, module.text, folders, options.base)
        entrypoint = ["python", "-m", module.text]
    return Container(
        role=role,
        where=module or own.whole("command") or where,
        image=package.take("executorImageUri") or own.take("imageUri"),
        entrypoint=[shell_words.plain(word) for word in entrypoint],
        arguments=arguments,
        environment=environment,
    )


def _put_scheduling(draft: Draft, scheduling: Values) -> None:
    ai_platform.put_scheduling(draft, scheduling, "timeout")
    restart = scheduling.take("restartJobOnWorkerRestart")
    if restart is not None and restart.text.lower() == "true":
        draft.put("train.max_restarts", RESTARTS, restart)
    strategy = scheduling.take("strategy")
    bought: dict[str, tuple[str, Plain]] = {
        "SPOT": ("spot", True),
        "FLEX_START": ("provisioning", "flex-start"),
    }
    if strategy is not None and strategy.text in bought:
        field, value = bought[strategy.text]
        for role in draft.counts():
            draft.put(("nodes", role, field), value, strategy)
    elif strategy is not None and strategy.text not in ("STANDARD", "ON_DEMAND"):
        draft.lose(
            strategy, f"{strategy.text} is not mapped: see nodes.ROLE in `cloudtrain docs config`"
        )
    scheduling.lose("maxWaitDuration", why="no counterpart: placement is tried in order")
