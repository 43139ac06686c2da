"""Maps a compose file whose services have TF_CONFIG: each is a task, and a node.

Fields: https://docs.docker.com/reference/compose-file/services/"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.core.cloud import providers
from cloudtrain.core.dataclass import dataclass
from cloudtrain.importers import shell_words
from cloudtrain.importers.command_line import put_code
from cloudtrain.importers.containers import Container, put_containers, put_gpus
from cloudtrain.importers.dockerfile import Dockerfile, read_dockerfile
from cloudtrain.importers.draft import Draft, Options
from cloudtrain.importers.image_code import put_image_code
from cloudtrain.importers.placed_code import Copy
from cloudtrain.importers.source_files import NotInside, below, text_of
from cloudtrain.importers.values import Value, Values, refuse
from cloudtrain.node.key_shapes import looks_like_key, looks_like_key_name

NO_COUNTERPART = (
    *("depends_on", "networks", "container_name", "hostname", "links", "tty", "stdin_open"),
    *("logging", "profiles", "network_mode", "pull_policy", "platform", "init"),
)
"""Keys of a service that nodes do not need."""


@dataclass(frozen=True, kw_only=True)
class ServiceTask:
    """Content of one TF_CONFIG."""

    role: str
    index: int
    cluster: Mapping[str, list[str]]
    origin: Value


def read(draft: Draft, values: Values, options: Options) -> None:
    """Read a compose file. Raises ConfigError without a service that has TF_CONFIG, or with
    different clusters."""
    draft.put("provider", next(row.name for row in providers() if row.on_this_machine))
    read_variables(draft, options.folder)
    name = values.take("name")
    draft.keep("name", name)
    for top in values.names():
        if top in ("version", "networks", "volumes") or str(top).startswith("x-"):
            values.drop(top)
    values.lose("secrets", why="not mapped: see `secrets:`")
    values.lose("configs", why="not mapped: deliver files by `code:`")
    tasks: list[tuple[ServiceTask, Values, dict[str, Value]]] = []
    for service in values.names("services"):
        found = values.at("services", service)
        environment = _environment(draft, found, options.folder)
        if "TF_CONFIG" in environment:
            tasks.append((_task(environment["TF_CONFIG"]), found, environment))
        else:
            found.lose(why="has no TF_CONFIG: it becomes no node")
    if not tasks:
        where = values.whole("services") or Value(file=values.file, field="services")
        raise refuse(where, "has no service with TF_CONFIG: nothing says what the cluster is")
    _put_nodes(draft, [task for task, _, _ in tasks])
    containers = [_container(draft, *each, options) for each in tasks]
    dockerfile = _put_code(draft, [service for _, service, _ in tasks], containers, options)
    put_containers(draft, containers, dockerfile)


# ── TF_CONFIG ────────────────────────────────────────────────────────────────


def _task(value: Value) -> ServiceTask:
    """Read a TF_CONFIG. Raises ConfigError for one that TensorFlow would refuse, too."""
    try:
        found = json.loads(value.text)
    except ValueError:
        raise refuse(value, "is no JSON") from None
    task = found.get("task") if isinstance(found, dict) else None
    cluster = found.get("cluster", {}) if isinstance(found, dict) else None
    if not isinstance(task, dict) or not isinstance(cluster, dict):
        raise refuse(value, 'has no "task" or no "cluster"')
    role, index = task.get("type"), task.get("index", 0)
    try:
        number = int(index)
    except (TypeError, ValueError):
        number = -1
    if not isinstance(role, str) or not 0 <= number < 1000:
        raise refuse(value, 'has no "type" and "index" in its "task"')
    hosts: dict[str, list[str]] = {}
    for name, listed in cluster.items():  # a role's addresses, as a list or by index
        items = list(listed.values()) if isinstance(listed, dict) else listed
        hosts[_role(name)] = [str(item) for item in (items if isinstance(items, list) else [items])]
    return ServiceTask(role=_role(role), index=number, cluster=hosts, origin=value)


def _role(name: str) -> str:
    return "chief" if name == "master" else name.lower()


def _put_nodes(draft: Draft, tasks: list[ServiceTask]) -> None:
    first = tasks[0]
    cluster = {role: hosts for role, hosts in first.cluster.items() if hosts}
    for task in tasks:
        same = {role: hosts for role, hosts in task.cluster.items() if hosts}
        alone = task.role == "evaluator" or not task.cluster
        if same != cluster and not alone:
            raise refuse(task.origin, f"has another cluster than {first.origin.field}")
        if "master" in task.origin.text:
            draft.lose(task.origin, "`master` is `chief` here: a script that looks for it changes")
    have = {(task.role, task.index): task for task in tasks}
    counts = {role: len(hosts) for role, hosts in cluster.items()}
    for role, index in have:
        counts[role] = max(counts.get(role, 0), index + 1 if role not in cluster else 0)
    for role, count in counts.items():
        origin = next((task.origin for task in tasks if task.role == role), first.origin)
        draft.role(role, count, origin)
        for index in range(count):
            if (role, index) not in have:
                draft.lose(first.origin, f"lists {role} {index}, which is no service of this file")
    ports = {host.rpartition(":")[2] for hosts in cluster.values() for host in hosts}
    if len(ports) == 1 and (port := next(iter(ports))).isdecimal():
        draft.put("train.port", int(port[:9]), first.origin, "of all tasks in TF_CONFIG")
    elif ports:
        listed = ", ".join(sorted(ports))
        draft.lose(first.origin, f"has different ports ({listed}): cloudtrain chooses them")


# ── services ─────────────────────────────────────────────────────────────────


def _environment(draft: Draft, service: Values, folder: Path) -> dict[str, Value]:
    """Variables of a service: its files' first, then its own."""
    found: dict[str, Value] = {}
    for name in service.names("env_file") or [""]:
        at = ("env_file", name) if name != "" else ("env_file",)
        entry = service.take(*at) or service.take(*at, "path")
        service.drop(*at)
        if entry is not None:
            found.update(environment_file(draft, folder, entry))
    for key in service.names("environment"):
        where = service.whole("environment", key)
        value = service.take("environment", key)
        if isinstance(key, int):
            if value is None:
                continue
            name, equals, text = value.text.partition("=")
            raw = value.with_text(text) if equals else None
        else:
            name, raw = key, value
        assert where
        text = passed_on(draft, name) if raw is None else interpolated(draft, raw)
        found[name] = (raw or where).with_text(text)
    return found


def _words(draft: Draft, service: Values, key: str) -> list[str]:
    """`command` or `entrypoint`: a list of words, or a line that is split into words."""
    if service.names(key):
        return [interpolated(draft, value) for value in service.take_list(key)]
    value = service.take(key)
    if value is None:
        return []
    text = interpolated(draft, value)
    try:
        return split_words(text)
    except ValueError as error:
        raise refuse(value, f"cannot be split into words: {error}") from None


def _container(
    draft: Draft,
    task: ServiceTask,
    service: Values,
    environment: dict[str, Value],
    options: Options,
) -> Container:
    where = service.whole("command") or service.whole()
    assert where
    for key in NO_COUNTERPART:
        service.drop(key)
    _name_ports(draft, task, service)
    for key in ("secrets", "configs"):
        service.lose(key, why="not mapped: see `secrets:`, or deliver files by `code:`")
    restart = service.take("restart")
    if restart is not None and (found := re.fullmatch(r"on-failure(?::(\d{1,3}))?", restart.text)):
        draft.put("train.max_restarts", int(found[1] or 3), restart)
    _put_gpus(draft, task.role, service, options)
    image, built = service.take("image"), service.has("build")  # then it is the name to give
    if image is not None:
        image = image.with_text(shell_words.with_defaults(interpolated(draft, image)))
    return Container(
        role=task.role,
        index=task.index,
        where=where,
        image=None if built else image,
        entrypoint=_words(draft, service, "entrypoint"),
        arguments=_words(draft, service, "command"),
        environment=environment,
        workdir=service.text("working_dir"),
        hosts={",".join(hosts): role for role, hosts in task.cluster.items() if hosts},
    )


def _name_ports(draft: Draft, task: ServiceTask, service: Values) -> None:
    """Ports that are published, but for those of the cluster: those a program serves by itself."""
    own = {host.rpartition(":")[2] for hosts in task.cluster.values() for host in hosts}
    for key in ("ports", "expose"):
        for at in service.names(key):
            entry = service.at(key, at)
            where = entry.whole()
            short = entry.take() or entry.take("target")
            entry.drop()
            port = short.text.partition("/")[0].rpartition(":")[2] if short else ""
            if where is not None and port not in own:
                why = (
                    f"{port or 'it'} is not published: `cloudtrain ssh-config` lets ssh -L reach it"
                )
                draft.lose(where, why)


def _put_gpus(draft: Draft, role: str, service: Values, options: Options) -> None:
    deploy = service.at("deploy", "resources", "reservations", "devices")
    found: tuple[int, Value] | None = None
    for at in deploy.names():
        where = deploy.whole(at)
        words = [value.text for value in deploy.take_list(at, "capabilities")]
        count = deploy.text(at, "count")
        ids = deploy.take_list(at, "device_ids")
        deploy.drop(at, "driver")
        if "gpu" in words and where:
            number = int(count) if count.isdecimal() and len(count) < 3 else len(ids)
            found = (max(number, 1), where)
    for key in ("runtime", "gpus"):
        value = service.take(key)
        if value is not None and (key == "gpus" or value.text == "nvidia"):
            number = int(value.text) if value.text.isdecimal() and len(value.text) < 3 else 1
            found = found or (max(number, 1), value)
    if found:
        put_gpus(draft, role, *found, options)


# ── code ─────────────────────────────────────────────────────────────────────


def _put_code(
    draft: Draft, services: list[Values], containers: list[Container], options: Options
) -> Dockerfile | None:
    """The build's context with what its Dockerfile copies, and folders that are mounted."""
    dockerfile, context, origin = _build(draft, services, options.folder)
    workdirs = dict.fromkeys(each.workdir for each in containers if each.workdir)
    workdir = next(iter(workdirs), dockerfile.folder if dockerfile else "")
    mounts, unused = _mounts(services, options.folder, workdir)
    if dockerfile is not None or mounts:
        if mounts and origin is None:
            context = Path(os.path.commonpath([mount.source for mount in mounts]))
        put_image_code(
            draft,
            dockerfile or Dockerfile(),
            context,
            options.base,
            origin,
            commands=[each.own_words for each in containers],
            workdir=workdir,
            mounts=mounts,
        )
    elif origin is not None:
        put_code(draft, context, options.base, origin)
    for volume in unused:
        draft.lose(
            volume, f"{volume.text}: nodes share no volume: deliver it by `code:` or `data:`"
        )
    return dockerfile


def _build(
    draft: Draft, services: list[Values], top: Path
) -> tuple[Dockerfile | None, Path, Value | None]:
    """The Dockerfile of the first service that is built, its context, and where the file says so;
    without one the folder itself."""
    dockerfile: Dockerfile | None = None
    context, origin = top, None
    for service in services:
        build = service.take("build") or service.take("build", "context")
        name = service.text("build", "dockerfile") or "Dockerfile"
        service.drop("build", "target")
        for value in service.take_list("build", "args"):
            draft.lose(value, "not mapped: the Dockerfile's own default is used")
        if build is None:
            continue
        folder = below(top.resolve(), build.text)
        if folder is None:
            draft.lose(
                build,
                f"{build.text} is outside of {top}, or a link: not read; import a file "
                "that stands above it, or set code.path",
            )
            continue
        if origin is None:
            origin, context = build, folder
            dockerfile = read_dockerfile(draft, folder / name, folder)
            if dockerfile is None:
                draft.lose(build, f"has no {name} here: set `setup:` and train.command")
        elif folder != context:
            draft.lose(build, f"another folder than {origin.field}: all nodes have one code")
    return dockerfile, context, origin


def _mounts(services: list[Values], folder: Path, workdir: str) -> tuple[list[Copy], list[Value]]:
    """Folders of the project that are mounted at, above or below the working folder, and all
    other volumes."""
    code: dict[tuple[Path, str], Copy] = {}
    unused: dict[str, Value] = {}
    for service in services:
        for at in service.names("volumes"):
            volume = service.at("volumes", at)
            short = volume.take()
            where = volume.whole()
            source, _, rest = short.text.partition(":") if short else ("", "", "")
            target = rest.partition(":")[0]
            if short is None:
                source, target = volume.text("source"), volume.text("target")
                volume.drop()
            if where is None:
                continue
            path = below(folder.resolve(), source)
            near = target.startswith("/") and _is_near(posixpath.normpath(target), workdir)
            if path is not None and source.startswith(".") and near and path.is_dir():
                target = posixpath.normpath(target)
                code.setdefault((path, target), Copy(source=path, target=target, origin=where))
            else:
                name = f"{source} at {target}" if target else source
                unused.setdefault(name, where.with_text(name))
    return list(code.values()), list(unused.values())


def _is_near(target: str, workdir: str) -> bool:
    """True if one path is the other, or in it."""
    own = posixpath.normpath(workdir or target).rstrip("/") + "/"
    other = target.rstrip("/") + "/"
    return own.startswith(other) or other.startswith(own)


# ── interpolation and environment files ──────────────────────────────────────
# https://docs.docker.com/reference/compose-file/interpolation/ and
# https://docs.docker.com/compose/how-tos/environment-variables/variable-interpolation/#env-file-syntax


_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<bare>[A-Za-z_]\w*)"
    r"|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-?+])(?P<text>(?:[^{}]|\$\{[^{}]*\})*))?\})"
)
_UNWRITABLE = re.compile(r"[${}\x00-\x1f]")
"""What no default of a config's variable can have."""


def interpolated(draft: Draft, value: Value) -> str:
    """The text with its variables marked for `shell_words`; an unset one is empty, as there."""

    def marked(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        name, how, text = found["bare"] or found["name"], found["how"] or "", found["text"] or ""
        if how.endswith("+"):
            draft.lose(value, f"{found[0]} is not mapped: write its value")
            return ""
        default = draft.variables.get(name)
        if default is None or (how.startswith(":") and not default):
            if how.endswith("?"):
                return shell_words.VARIABLE[0] + name + shell_words.VARIABLE[1]
            default = text if how else ""
            if "${" in default:
                inner = _VARIABLE.sub(marked, default)
                draft.lose(value, f"{found[0]}: only {name} stays a variable")
                default = shell_words.with_defaults(inner)
        return with_default(name, default)

    return _VARIABLE.sub(marked, shell_words.clean(value.text))


def with_default(name: str, default: str) -> str:
    """A variable and its value where the environment has none; the value alone, if no config can
    have it as a default."""
    if _UNWRITABLE.search(default):
        return default
    return f"{shell_words.VARIABLE[0]}{name}:-{default}{shell_words.VARIABLE[1]}"


def passed_on(draft: Draft, name: str) -> str:
    """A variable that is taken from the shell that starts compose, or from its `.env`."""
    return with_default(name, draft.variables.get(name, ""))


def split_words(text: str) -> list[str]:
    """The words of an interpolated `command:`, which compose splits after it has filled in the
    variables: one that no quotes surround may be several words, or none. Raises ValueError for an
    open quote."""
    marks: list[str] = []
    quote, pieces = "", []
    whole = re.compile(rf"{shell_words.VARIABLE[0]}[^{shell_words.VARIABLE[1]}]*.|\\?.", re.DOTALL)
    for found in whole.finditer(text):
        piece = found[0]
        if piece.startswith(shell_words.VARIABLE[0]):
            marks.append(piece if quote else shell_words.unquoted(piece))
            piece = shell_words.VARIABLE[0] + str(len(marks) - 1) + shell_words.VARIABLE[1]
        elif piece in "\"'" and quote in ("", piece):
            quote = "" if quote else piece
        elif quote == "'" and piece == "\\'":
            quote = ""
        pieces.append(piece)
    mark = re.compile(rf"{shell_words.VARIABLE[0]}(\d+){shell_words.VARIABLE[1]}")
    return [mark.sub(lambda at: marks[int(at[1])], word) for word in shlex.split("".join(pieces))]


def read_variables(draft: Draft, folder: Path) -> None:
    """Take the variables of compose's `.env`, which stands beside its file."""
    path = folder / ".env"
    if not path.is_file() or path.is_symlink():
        return
    named = Value(text=".env", file=str(path), field=".env")
    for name, value in environment_file(draft, folder, named).items():
        if looks_like_key_name(name) or looks_like_key(value.text):
            draft.lose(value, f"looks like a secret: export {name}; its value is not copied")
        else:
            draft.variables[name] = shell_words.with_defaults(value.text)


def environment_file(draft: Draft, folder: Path, named: Value) -> dict[str, Value]:
    """Variables of an `env_file` below the folder; one that cannot be read is reported."""
    path = folder / named.text
    try:
        text = text_of(folder, named.text)
    except (OSError, ValueError) as error:
        why = f" ({error})" if isinstance(error, NotInside) else ""
        draft.lose(named, f"cannot read {named.text}{why}: write its variables under train.env")
        return {}
    found: dict[str, Value] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*(?:=\s*(.*?))?\s*$", line)
        if entry is None:
            continue
        name, raw = entry[1], entry[2]
        value = Value(text=raw or "", file=str(path), line=number, field=name)
        text = _unquoted(draft, value) if raw is not None else passed_on(draft, name)
        found[name] = value.with_text(text)
    return found


def _unquoted(draft: Draft, value: Value) -> str:
    if quoted := re.match(r"'([^']*)'", value.text):
        return shell_words.clean(quoted[1])
    if quoted := re.match(r'"((?:[^"\\]|\\.)*)"', value.text):
        text = re.sub(
            r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), quoted[1]
        )
        return interpolated(draft, value.with_text(text))
    return interpolated(draft, value.with_text(re.sub(r"\s+#.*", "", value.text)))
