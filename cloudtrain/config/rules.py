"""Rules between fields: which roles a strategy has, what a provider needs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from cloudtrain.config.fields import nearest
from cloudtrain.config.file import File
from cloudtrain.config.lines import Path, shown
from cloudtrain.model import ROLE_ORDER, SINGLE_NODE_STRATEGIES

CLOUDS = ("gcp", "aws", "azure")
LAST_PORT = 65535

_LOOPBACK = re.compile(r"http://([^/@]*@)?(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?(/|$)")

Found = Iterator[tuple[Path, str]]
Counts = Mapping[str, int]

_ROLES = {
    "multi_worker_mirrored": ("chief", "worker", "evaluator"),
    "parameter_server": ROLE_ORDER,
    "horovod": ("worker",),
}
_WHY_NOT = {
    (
        "multi_worker_mirrored",
        "ps",
    ): "a ps makes the chief wait for ever (it is for parameter_server)",
}


def broken_rules(file: File) -> Found:
    """Every rule that the file breaks, as a path and a sentence."""
    for rule in _RULES:
        yield from rule(file)


def counts(file: File) -> dict[str, int]:
    """Role → number of nodes, from `nodes`, or from `hosts`, or what the strategy implies."""
    if file.nodes is not None:
        return {role: group.count or 1 for role, group in file.nodes.items() if group is not None}
    if file.provider == "hosts" and file.hosts is not None:
        return dict(Counter(host.role for host in file.hosts))
    if file.strategy in SINGLE_NODE_STRATEGIES or file.strategy == "tpu":
        return {"chief": 1}
    return {}


def _required(file: File) -> Found:
    for name in ("provider", "strategy"):
        if getattr(file, name) is None:
            yield (name,), "is missing"
    if file.train is not None and file.train.command is None:
        yield ("train", "command"), "is missing"
    if file.provider in CLOUDS and not file.placement:
        yield ("placement",), f"is missing: provider {file.provider} needs a zone or region"
    if file.provider == "hosts" and not file.hosts:
        yield (
            ("hosts",),
            "is missing: provider hosts needs a list of {address, user, key, role},"
            " or the path of an INI [cluster] file",
        )
    if file.provider in CLOUDS and file.hosts:
        yield ("hosts",), f"is only for provider hosts, and this is {file.provider}"


def _code(file: File) -> Found:
    if file.code is not None and file.code.git and file.code.path:
        yield ("code", "path"), "stands beside `git`: code comes from one of the two"
    if file.code is not None and file.code.ref and not file.code.git:
        yield ("code", "ref"), "is a branch, tag or commit of `git`, which is not given"
    if file.code is not None:
        yield from _token(file, file.code.git or "", file.code.token)


def _token(file: File, git: str, token: str | None) -> Found:
    """A name that is no secret's may be the token itself, and is not shown."""
    known = file.secrets or {}
    user = re.match(r"(?i)https?://[^/]*@", git)
    if user and not token:
        yield (
            ("code", "git"),
            "holds a user in the URL: leave it out, or name that user's token in `token`",
        )
    if not token:
        return
    if token not in known:
        by_lower = {name.lower(): name for name in known}
        meant = nearest(token, by_lower)
        hint = (
            f"did you mean {by_lower[meant]!r}?"
            if meant
            else "write `GIT_TOKEN: ${GIT_TOKEN}` there"
        )
        yield ("code", "token"), f"names no entry under `secrets`: {hint}"
    if not git:
        yield ("code", "token"), "opens `git`, which is not given"
    elif not re.match(r"(?i)https://", git) and not _LOOPBACK.match(git):
        yield (
            ("code", "token"),
            "goes over https:// alone, and `git` is another URL"
            " (over SSH, your keys and agent here open it)",
        )


def _artifacts(file: File) -> Found:
    if file.artifacts is not None and file.artifacts.create and not file.artifacts.store:
        yield ("artifacts", "store"), "is missing: `create` makes what it names"


def _secrets(file: File) -> Found:
    env = (file.train and file.train.env) or {}
    for name in file.secrets or {}:
        if name in env:
            yield ("secrets", name), "stands in `train.env` too: keep one of the two"


def _roles(file: File) -> Found:
    """semantics of tf.distribute: what each strategy can start with (docs/config.md)."""
    if file.strategy is None:
        return
    found = counts(file)
    known = _ROLES.get(file.strategy)
    for role in found:
        if role == "master":
            yield _at(file, role), "TensorFlow 2 has no role 'master': name it 'chief'"
        elif known is None and not re.fullmatch(r"[a-z]([a-z0-9]{0,13}[a-z])?", role):
            yield (
                _at(file, role),
                "a role's name is up to 15 lower-case letters and digits,"
                " a letter first and no digit last",
            )
        elif known is not None and role not in known:
            yield _at(file, role), _no_such_role(file.strategy, role, known)
    if file.nodes is None and not found:
        if file.provider == "hosts" or (file.provider is None and file.hosts):
            return
        yield ("nodes",), f"is missing: strategy {file.strategy} needs its roles and their counts"
        return
    yield from _COUNT_RULES.get(file.strategy, _some)(file, found)


def _multi_worker(file: File, found: Counts) -> Found:
    if file.nodes is not None and "chief" not in file.nodes and "master" not in found:
        yield (
            ("nodes", "chief"),
            "is missing: one node is the chief, which saves the model"
            " (`chief: false` makes worker 0 do it)",
        )
    if not found.get("chief") and not found.get("worker") and "chief" in (file.nodes or {}):
        yield ("nodes", "worker"), "is missing: without a chief there must be a worker"
    yield from _at_most_one(file, found)


def _parameter_server(file: File, found: Counts) -> Found:
    why = {
        "chief": "a parameter_server job cannot start without its chief",
        "worker": "parameter_server needs at least one",
        "ps": "parameter_server needs at least one",
    }
    for role, text in why.items():
        if not found.get(role) and not (role == "chief" and "master" in found):
            yield _at(file, role), f"is missing: {text}"
    yield from _at_most_one(file, found)


def _one_node(file: File, found: Counts) -> Found:
    if sum(found.values()) != 1:
        yield (
            ("nodes",) if file.nodes is not None else ("hosts",),
            f"strategy {file.strategy} runs on one node, and these are {sum(found.values())}",
        )


def _horovod(file: File, found: Counts) -> Found:
    if not found.get("worker"):
        yield _at(file, "worker"), "is missing: horovod needs at least one"


def _some(file: File, found: Counts) -> Found:
    if not found:
        yield ("nodes",), "names no node"


def _at_most_one(file: File, found: Counts) -> Found:
    for role in ("chief", "evaluator"):
        if found.get(role, 0) > 1:
            below = ("count",) if file.nodes is not None else ()
            yield (*_at(file, role), *below), f"there is at most one {role}"


_COUNT_RULES: Mapping[str, Callable[[File, Counts], Found]] = {
    "multi_worker_mirrored": _multi_worker,
    "parameter_server": _parameter_server,
    "horovod": _horovod,
    "tpu": _one_node,
    **dict.fromkeys(SINGLE_NODE_STRATEGIES, _one_node),
}


def _hosts(file: File) -> Found:
    """Where both are given, `nodes` says the same as `hosts`."""
    if file.provider != "hosts" or not file.hosts or file.nodes is None:
        return
    have = Counter(host.role for host in file.hosts)
    want = counts(file)
    for role in sorted(have.keys() | want.keys()):
        if have[role] != want.get(role, 0):
            yield (
                ("nodes", role, "count") if role in want else ("hosts",),
                f"{want.get(role, 0)} of role {shown(role)} in `nodes`, {have[role]} in `hosts`",
            )


def _provider(file: File) -> Found:
    if file.strategy == "tpu" and file.provider not in ("gcp", None):
        yield (
            ("strategy",),
            "tpu needs provider gcp: the others have no TPUs (and is not supported yet)",
        )


def _ports(file: File) -> Found:
    """On one machine every task has a port of its own, counted up from `train.port`."""
    first = (file.train and file.train.port) or 0
    last = first + sum(counts(file).values()) - 1
    if file.provider == "hosts":
        shared = Counter(host.address for host in file.hosts or ())
        last = first + max(shared.values(), default=1) - 1
    if file.provider in ("local", "hosts") and first and last > LAST_PORT:
        yield ("train", "port"), f"counts up to {last} over all nodes; the last port is {LAST_PORT}"


_RULES: tuple[Callable[[File], Found], ...] = (
    _required,
    _code,
    _artifacts,
    _secrets,
    _roles,
    _hosts,
    _provider,
    _ports,
)


def _no_such_role(strategy: str, role: str, known: tuple[str, ...]) -> str:
    why = _WHY_NOT.get((strategy, role))
    meant = None if role in ROLE_ORDER else nearest(role, known)
    after = why or (f"did you mean {meant!r}?" if meant else f"its roles are {', '.join(known)}")
    return f"strategy {strategy} has no such role: {after}"


def _at(file: File, role: str) -> Path:
    """Where to point at for a role: a list of hosts has no line for it."""
    return ("nodes", role) if file.nodes is not None else ("hosts",)
