"""Maps Kubeflow's TFJob, `kubeflow.org/v1` and its betas.

Fields: https://github.com/kubeflow/training-operator/blob/v1.7.0/pkg/apis/kubeflow.org/v1/tensorflow_types.go
and common_types.go beside it."""

from __future__ import annotations

import re

from cloudtrain.core.task_id import ROLE_ORDER
from cloudtrain.importers import shell_words
from cloudtrain.importers.containers import Container, put_containers, put_gpus
from cloudtrain.importers.dockerfile import Dockerfile, read_dockerfile
from cloudtrain.importers.draft import Draft, Options
from cloudtrain.importers.image_code import put_image_code
from cloudtrain.importers.values import Value, Values, refuse

ROLES = {"master": "chief", **{role: role for role in ROLE_ORDER}}
PORT = 2222
"""The operator's default port, `tfjob-port`."""
RESTARTS = 3
"""Where the job restarts without a backoffLimit, which is without end."""

_DROPPED = ("apiVersion", "kind", "status")
_RUN_POLICY = ("cleanPodPolicy", "ttlSecondsAfterFinished")


def read(draft: Draft, values: Values, options: Options) -> None:
    """Read a TFJob. Raises ConfigError for a dynamic or an unknown kind of job."""
    for key in _DROPPED:
        values.drop(key)
    metadata, spec = values.at("metadata"), values.at("spec")
    name = metadata.take("name") or metadata.take("generateName")
    draft.keep("name", name)
    metadata.drop("namespace")
    metadata.drop("creationTimestamp")
    dynamic = spec.take("enableDynamicWorker")
    if dynamic is not None and dynamic.text.lower() == "true":
        raise refuse(dynamic, "a job whose workers come and go is not imported")
    dockerfile = read_dockerfile(draft, options.folder / "Dockerfile")
    replicas = spec.at("tfReplicaSpecs")
    if not replicas.names():
        where = spec.whole() or Value(file=values.file, line=1, field="spec")
        raise refuse(where, "has no tfReplicaSpecs: older TFJobs are not imported")
    _put_replicas(draft, replicas, dockerfile, options)
    _put_policies(draft, spec)


def _put_replicas(
    draft: Draft, replicas: Values, dockerfile: Dockerfile | None, options: Options
) -> None:
    containers: list[Container] = []
    policies: list[Value] = []
    for key in replicas.names():
        spec, role = replicas.at(key), ROLES.get(str(key).lower())
        where = spec.whole()
        assert where
        if role is None:
            spec.drop()
            draft.lose(where, f"{key} is no replica type of a TFJob")
            continue
        if str(key).lower() == "master":
            draft.lose(where, "is `chief` here: a script that looks for `master` must be changed")
        count = spec.take("replicas")
        number = count.number if count and count.number is not None else 1
        draft.role(role, number, count)
        if not number:
            spec.drop()
            continue
        policy = spec.take("restartPolicy") or spec.take("template", "spec", "restartPolicy")
        spec.drop("template", "spec", "restartPolicy")
        policies += [policy] if policy else []
        containers.append(_container(draft, spec.at("template"), role, where, options))
    if dockerfile is not None and containers:
        put_image_code(
            draft,
            dockerfile,
            options.folder.resolve(),
            options.base,
            containers[0].image,
            commands=[each.own_words for each in containers],
            workdir=next((each.workdir for each in containers if each.workdir), ""),
        )
    put_containers(draft, containers, dockerfile)
    for policy in policies:
        if policy.text in ("OnFailure", "Always", "ExitCode"):
            draft.put("train.max_restarts", RESTARTS, policy, f"restartPolicy: {policy.text}")
        if policy.text in ("OnFailure", "Always"):
            draft.lose(policy, "a script's own exit code is retried only by train.retry_exit_codes")
            return


def _container(
    draft: Draft, template: Values, role: str, where: Value, options: Options
) -> Container:
    """The container `tensorflow`, or the first."""
    template.drop("metadata", "annotations", "sidecar.istio.io/inject")
    template.drop("metadata", "creationTimestamp")
    pod = template.at("spec")
    pod.lose("volumes", why="nodes share no volume: deliver it by `code:` or `data:`")
    account = pod.take("serviceAccountName") or pod.take("serviceAccount")
    if account is not None:
        draft.lose(account, "nodes have no rights of their own: see `identity:`")
    names = pod.names("containers")
    chosen = next((n for n in names if pod.text("containers", n, "name") == "tensorflow"), 0)
    for other in names:
        if other != chosen:
            pod.lose("containers", other, why="a second container is not mapped")
    found = pod.at("containers", chosen)
    for key in ("name", "imagePullPolicy"):
        found.drop(key)
    found.lose("volumeMounts", why="nodes share no volume: deliver it by `code:` or `data:`")
    draft.put("train.port", draft.get("train.port") or PORT, comment="tfjob-port")
    for at in found.names("ports"):
        port = found.at("ports", at)
        number, name = port.take("containerPort"), port.text("name")
        port.drop()
        if number and number.text.isdecimal() and name == "tfjob-port":
            draft.put("train.port", int(number.text[:9]), number)
    _put_resources(draft, found, role, options)
    environment = _environment(draft, found)
    entrypoint = [value.text for value in found.take_list("command")]
    arguments = [value.text for value in found.take_list("args")]
    return Container(
        role=role,
        where=found.whole("command") or found.whole("args") or where,
        image=found.take("image"),
        entrypoint=[_expanded(word, environment) for word in entrypoint],
        arguments=[_expanded(word, environment) for word in arguments],
        environment=environment,
        workdir=found.text("workingDir"),
    )


def _put_resources(draft: Draft, container: Values, role: str, options: Options) -> None:
    for kind in ("limits", "requests"):
        for key in container.names("resources", kind):
            value = container.take("resources", kind, key)
            if value and str(key).endswith("/gpu") and value.text.isdecimal():
                if kind == "limits" and 0 < int(value.text[:4]) < 100:
                    put_gpus(draft, role, int(value.text), value, options)
            elif value and kind == "limits":
                draft.lose(value, f"set nodes.{role}.machine to one that has it")


def _environment(draft: Draft, container: Values) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for at in container.names("env"):
        entry = container.at("env", at)
        name, value = entry.text("name"), entry.take("value")
        secret = entry.whole("valueFrom", "secretKeyRef")
        if secret is not None:
            entry.drop("valueFrom")
            draft.put(("secrets", name), f"${{{name}}}", secret)
            draft.lose(secret, f"export {name} in the shell that runs cloudtrain")
        elif value is not None and name:
            found[name] = value.with_text(_expanded(shell_words.clean(value.text), found))
        elif name and not entry.has("valueFrom"):
            where = entry.whole()
            assert where
            found[name] = where.with_text("")
    container.lose("envFrom", why="write its variables under train.env or secrets")
    return found


def _expanded(word: str, environment: dict[str, Value]) -> str:
    """Kubernetes' `$(NAME)`: the container's variable; `$$(NAME)` and unknown ones stay
    (https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/).
    """

    def value(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        known = environment.get(found[1])
        return known.text if known else found[0]

    return re.sub(r"\$?\$\(([A-Za-z_.-][\w.-]*)\)", value, shell_words.clean(word))


def _put_policies(draft: Draft, spec: Values) -> None:
    """Run policies, which betas have directly in the spec."""
    for policy in (spec.at("runPolicy"), spec):
        for key in _RUN_POLICY:
            policy.drop(key)
        deadline, backoff = policy.take("activeDeadlineSeconds"), policy.take("backoffLimit")
        draft.keep("train.deadline", deadline)
        if backoff is not None and backoff.text.isdecimal():
            draft.put("train.max_restarts", int(backoff.text[:9]), backoff)
        policy.lose("schedulingPolicy", why="all nodes start together, or none")
        suspend = policy.take("suspend")
        if suspend is not None and suspend.text == "true":
            draft.lose(suspend, "a suspended job is not mapped")
    success = spec.take("successPolicy")
    if success is not None and success.text == "AllWorkers":
        draft.put("train.success", "all_workers", success)
