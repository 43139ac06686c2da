"""Rules between fields: roles of a strategy, needs of a provider."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from cloudtrain.catalog import tpus
from cloudtrain.config.cloud_rules import broken_cloud_rules
from cloudtrain.config.fields import did_you_mean, nearest
from cloudtrain.config.sections import ConfigFile
from cloudtrain.config.training_sections import DataEntry, SetupSection
from cloudtrain.config.yaml_source import Path, shown
from cloudtrain.core.cloud import cloud_of, clouds, facts_of
from cloudtrain.core.store_kinds import KINDS, kind_of
from cloudtrain.core.task_id import ROLE_NAME, ROLE_ORDER
from cloudtrain.training.strategies import STRATEGIES
from cloudtrain.training.strategy import Counts, Strategy

LAST_PORT = 65535

_LOOPBACK = re.compile(r"http://([^/@]*@)?(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?(/|$)")

Found = Iterator[tuple[Path, str]]


def broken_rules(file: ConfigFile) -> Found:
    """Every rule that the file breaks, as a path and a sentence."""
    for rule in _RULES:
        yield from rule(file)


def counts(file: ConfigFile) -> dict[str, int]:
    """Number of nodes by role, from `nodes`, from `hosts`, or as the strategy implies."""
    if file.nodes is not None:
        groups = {role: group for role, group in file.nodes.items() if group is not None}
        found = {role: group.count or 1 for role, group in groups.items()}
        strategy = _strategy(file)
        for role, group in groups.items() if strategy and strategy.tpus else ():
            kind = tpus.tpu_type(file.provider, group.machine)
            found[role] = group.count or (kind.hosts if kind else 1)
        return found
    if _takes_hosts(file) and file.hosts is not None:
        return dict(Counter(host.role for host in file.hosts))
    strategy = _strategy(file)
    return dict(strategy.example) if strategy is not None and strategy.single_node else {}


def _strategy(file: ConfigFile) -> Strategy | None:
    return STRATEGIES.get(file.strategy or "")


def _required(file: ConfigFile) -> Found:
    for name in ("provider", "strategy"):
        if getattr(file, name) is None:
            yield (name,), "is missing"
    if file.train is not None and file.train.command is None:
        yield ("train", "command"), "is missing"
    cloud = cloud_of(file.provider)
    if cloud and not file.placement:
        yield ("placement",), f"is missing: provider {file.provider} needs a zone or region"
    if _takes_hosts(file) and not file.hosts:
        yield (
            ("hosts",),
            "is missing: provider hosts needs a list of {address, user, key, role},"
            " or the path of an INI [cluster] file",
        )
    if cloud and file.hosts:
        yield ("hosts",), f"is only for provider hosts, not {file.provider}"


def _code(file: ConfigFile) -> Found:
    code = file.code
    if code is None:
        return
    if code.git and code.path:
        yield ("code", "path"), "conflicts with `git`: use one of the two"
    if code.ref and not code.git:
        yield ("code", "ref"), "requires `git`: it is a branch, tag or commit of it"
    yield from _token(file, code.git or "", code.token)


def _named_secret(file: ConfigFile, path: Path, name: str) -> Found:
    """The entry under `secrets` that a field names, whose name is not shown if it is none: it may
    be the secret itself."""
    known = file.secrets or {}
    if name not in known:
        by_lower = {each.lower(): each for each in known}
        meant = nearest(name, by_lower)
        hint = f"did you mean {by_lower[meant]!r}?" if meant else "add `NAME: ${NAME}` there"
        yield path, f"names no entry under `secrets`: {hint}"


def _setup(file: ConfigFile) -> Found:
    setup = file.setup
    if setup is None:
        return
    if setup.index and not (setup.packages or setup.requirements or setup.install):
        yield ("setup", "index"), "requires `packages`, `requirements` or `install`"
    if setup.index_password:
        yield from _named_secret(file, ("setup", "index_password"), setup.index_password)
        if not setup.index:
            yield ("setup", "index_password"), "requires `index`"
    yield from _image(file, setup)


_NOT_WITH_IMAGE = (*("tensorflow", "python", "keras", "requirements", "index", "install", "run"),)


def _image(file: ConfigFile, setup: SetupSection) -> Found:
    """Whatever `setup:` installs otherwise is a matter of the image's."""
    if setup.registry_password:
        yield from _named_secret(file, ("setup", "registry_password"), setup.registry_password)
    for name in ("registry_user", "registry_password"):
        if getattr(setup, name) and not (setup.image and setup.registry_user):
            needs = "image" if not setup.image else "registry_user"
            yield ("setup", name), f"requires `{needs}`"
    if not setup.image:
        return
    for name in _NOT_WITH_IMAGE:
        if getattr(setup, name):
            text = "conflicts with `image`, which has the environment: build one that has this, too"
            yield ("setup", name), text
    strategy = _strategy(file)
    if strategy is not None and (strategy.tpus or strategy.library):
        yield ("setup", "image"), f"does not work with strategy {file.strategy}"


def _notify(file: ConfigFile) -> Found:
    for kind in ("end", "failed", "budget", "idle"):
        name = getattr(file.notify, kind, None)
        if name:
            yield from _named_secret(file, ("notify", kind), name)


def _token(file: ConfigFile, git: str, token: str | None) -> Found:
    user = re.match(r"(?i)https?://[^/]*@", git)
    if user and not token:
        text = "contains a user in the URL: remove it, or name that user's token in `token`"
        yield ("code", "git"), text
    if not token:
        return
    yield from _named_secret(file, ("code", "token"), token)
    if not git:
        yield ("code", "token"), "requires `git`"
    elif not re.match(r"(?i)https://", git) and not _LOOPBACK.match(git):
        yield (
            ("code", "token"),
            "works only with an https:// URL in `git`"
            " (over SSH, your local keys and agent are used)",
        )


def _artifacts(file: ConfigFile) -> Found:
    given = file.artifacts
    if given is not None and given.create and not given.store:
        yield ("artifacts", "store"), "is missing: `create` needs it"
    store = kind_of((given and given.store) or "")
    if given is not None and given.encryption and not (store and store.encrypts_on_request):
        takes = " or ".join(f"{kind.scheme}://" for kind in KINDS if kind.encrypts_on_request)
        text = f"is for an {takes} `store`: others encrypt by themselves"
        yield ("artifacts", "encryption"), text
    for name, entry in (file.data or {}).items():
        source = kind_of(entry.source or "")
        if entry.requester_pays and not (source and source.bills_readers):
            takes = " and ".join(f"{kind.scheme}://" for kind in KINDS if kind.bills_readers)
            yield ("data", name, "requester_pays"), f"is for {takes} data"


def _secrets(file: ConfigFile) -> Found:
    env = (file.train and file.train.env) or {}
    for name in file.secrets or {}:
        if name in env:
            yield ("secrets", name), "is also in `train.env`: keep one of the two"


_MASTER = (
    "TensorFlow 2 has no role 'master': use 'chief' (`strategy: custom` allows it, for TensorFlow "
    "1's Estimator)"
)
"""https://github.com/tensorflow/tensorflow/blob/v2.16.1/tensorflow/python/distribute/multi_worker_util.py"""

_MASTER_OF_1 = (
    "TensorFlow 1's 'master' needs `strategy: custom` and `train.tf_config: true`; with 'chief' in "
    "its place only an Estimator trains, not code that asks for 'master' itself"
)


def _roles(file: ConfigFile) -> Found:
    """Rules of tf.distribute on the roles that each strategy can start with (docs/config.md)."""
    strategy = _strategy(file)
    if strategy is None or not strategy.launched:
        return
    found = counts(file)
    for role in found:
        if role == "master" and (strategy.roles or strategy.single_node):
            version = file.setup.tensorflow if file.setup is not None else None
            yield _at(file, role), _MASTER_OF_1 if str(version or "").startswith("1.") else _MASTER
        elif strategy.roles and role not in strategy.roles:
            after = f"its roles are {', '.join(strategy.roles)}"
            if role not in ROLE_ORDER:
                after = did_you_mean(role, strategy.roles, after)
            after = strategy.misplaced.get(role) or after
            yield _at(file, role), f"strategy {strategy.name} has no such role: {after}"
        elif not ROLE_NAME.match(role):
            yield (
                _at(file, role),
                "a role's name has up to 15 lower-case letters and digits,"
                " starts with a letter and does not end with a digit",
            )
    if file.nodes is not None or found:
        yield from _counts(file, strategy, found)
    elif not _takes_hosts(file) and not (file.provider is None and file.hosts):
        yield ("nodes",), f"is missing: strategy {strategy.name} needs its roles and their counts"


def _counts(file: ConfigFile, strategy: Strategy, found: Counts) -> Found:
    """Rules on the number of nodes of each role. `chief` is suggested for `master`."""
    named = strategy.roles if file.nodes is None else file.nodes
    for role, why in strategy.missing(found, named):
        if not (role == "chief" and "master" in found):
            yield _at(file, role), f"is missing: {why}"
    total = sum(found.values())
    if strategy.single_node and total != 1:
        text = f"strategy {strategy.name} runs on one node, but {total} are configured"
        yield ("nodes",) if file.nodes is not None else ("hosts",), text
    elif not strategy.roles and not found:
        yield ("nodes",), "lists no nodes"
    for role in ("chief", "evaluator"):
        if role in strategy.roles and found.get(role, 0) > 1:
            below = ("count",) if file.nodes is not None else ()
            yield (*_at(file, role), *below), f"at most one {role} is allowed"


def _hosts(file: ConfigFile) -> Found:
    """Rules on `hosts`; if both are given, `nodes` must say the same."""
    if not _takes_hosts(file) or not file.hosts or file.nodes is None:
        return
    have = Counter(host.role for host in file.hosts)
    want = counts(file)
    for role in sorted(have.keys() | want.keys()):
        if have[role] != want.get(role, 0):
            yield (
                ("nodes", role, "count") if role in want else ("hosts",),
                f"`nodes` has {want.get(role, 0)} of role {shown(role)}, `hosts` has {have[role]}",
            )


def _tpus(file: ConfigFile) -> Found:
    """Rules on TPUs: the machine is a TPU type, and all else follows from it."""
    strategy, cloud = _strategy(file), cloud_of(file.provider)
    if strategy is None or cloud is None:
        return
    if not cloud.tpus:
        have = [each.name for each in clouds() if each.tpus]
        if strategy.tpus:
            yield ("strategy",), f"{cloud.title} has no TPUs: use provider {' or '.join(have)}"
        return
    for role, group in (file.nodes or {}).items():
        if group is None:
            continue
        at: Path = ("nodes", role)
        kind = tpus.tpu_type(cloud.name, group.machine)
        if not strategy.tpus:
            if kind is not None:
                yield (*at, "machine"), f"{kind.name} is a TPU: it needs `strategy: tpu`"
            continue
        why = tpus.refusal(cloud.name, group.machine)
        if why:
            yield (*at, "machine"), why
        if kind is not None and group.count not in (None, kind.hosts):
            text = f"{kind.name} has {kind.hosts} hosts: leave `count` out"
            yield (*at, "count"), text
        for name in ("accelerator", "disk_gb"):
            if getattr(group, name) is not None:
                yield (*at, name), "is not for TPUs: the TPU type decides it"
    if strategy.tpus and re.match(r"ubuntu|deeplearning$", file.image or ""):
        yield ("image",), "is not for TPUs: use `auto` or a TPU software version"


def _ports(file: ConfigFile) -> Found:
    """Rules on ports: on one machine every task has a port of its own, counted up from
    `train.port`."""
    first = (file.train and file.train.port) or 0
    last = first + sum(counts(file).values()) - 1
    if _takes_hosts(file):
        shared = Counter(host.address for host in file.hosts or ())
        last = first + max(shared.values(), default=1) - 1
    if file.provider and facts_of(file.provider).free and first and last > LAST_PORT:
        text = f"needs ports up to {last} for all nodes; the highest port is {LAST_PORT}"
        yield ("train", "port"), text


def _estimator(file: ConfigFile) -> Found:
    """An Estimator's evaluator refuses a cluster without a chief; a chief of it evaluates alone."""
    roles = counts(file)
    wanted = file.train is not None and file.train.tf_config == "estimator"
    if wanted and roles and "evaluator" in roles and "chief" not in roles:
        text = "estimator: the evaluator of tf.estimator needs a `chief` among the nodes"
        yield ("train", "tf_config"), text


def _budget(file: ConfigFile) -> Found:
    limits = file.limits
    if limits is None or limits.budget is None:
        return
    if file.provider is not None and facts_of(file.provider).free:
        yield ("limits", "budget"), f"provider {file.provider} bills nothing"
    elif "max_lifetime" in limits.given and limits.max_lifetime is None:
        text = "cannot be off with limits.budget, which the lifetime of the nodes holds"
        yield ("limits", "max_lifetime"), text


_GIVEN: tuple[object, ...] = (True, "estimator")
"""Values of `train.tf_config` with which every strategy's tasks get one."""


def _master(file: ConfigFile) -> Found:
    """With a `master`, TensorFlow 1's Estimator refuses a chief and an evaluator.

    https://github.com/tensorflow/estimator/blob/v2.15.0/tensorflow_estimator/python/estimator/run_config.py
    """
    found = counts(file)
    if "master" not in found or file.train is None or file.train.tf_config not in _GIVEN:
        return
    for role in ("chief", "evaluator"):
        if role in found:
            text = "not next to a master: TensorFlow 1's Estimator refuses such a TF_CONFIG"
            yield _at(file, role), text
    if found["master"] > 1:
        yield _at(file, "master"), "at most one master is allowed"


def _takes_hosts(file: ConfigFile) -> bool:
    return file.provider is not None and facts_of(file.provider).takes_hosts


def _at(file: ConfigFile, role: str) -> Path:
    """Path to report for a role; a list of hosts has no line per role."""
    return ("nodes", role) if file.nodes is not None else ("hosts",)


# ── `train.command`: a line for each role, and the roles that `{ROLE.hosts}` names ────────────


DEFAULT = "default"
"""Key of the line of all roles that have none of their own."""

_ROLE_HOSTS = re.compile(r"\{([^{}\s.]+)\.hosts\}")


def _commands(file: ConfigFile) -> Found:
    roles = counts(file)
    if file.train is None or not roles:
        return
    lines = file.train.command or {}
    if "" not in lines:
        for role in lines:
            if role not in (*roles, DEFAULT):
                yield ("train", "command", role), _no_role(role, (*roles, DEFAULT))
        without = [role for role in roles if role not in lines]
        if lines and without and DEFAULT not in lines:
            names = ", ".join(without)
            yield ("train", "command"), f"has no line for {names}: add one, or `{DEFAULT}`"
    for path, text in file.train.texts().items():
        for role in dict.fromkeys(_ROLE_HOSTS.findall(text)):
            if role not in roles:
                yield (
                    ("train", *path),
                    f"names {{{shown(role)}.hosts}}, but {_no_role(role, roles)}",
                )


def _no_role(role: str, roles: Collection[str]) -> str:
    after = did_you_mean(role, roles, f"the roles are {', '.join(roles)}")
    return f"no node has the role {shown(role)!r}: {after}"


# ── `data:`: roles, shards, and the datasets that the command names ───────────────────────────


NOT_TRAINING = ("ps", "evaluator")
"""Roles that read no shard: they do not train on data."""

TRAINING = ("chief", "worker")
"""Roles that shards without a role are for."""

_PLACEHOLDER = re.compile(r"\{data\.([^{}\s]*)\}")


def _data(file: ConfigFile) -> Found:
    roles, data = counts(file), file.data or {}
    for name, entry in data.items():
        yield from _dataset(("data", name), entry, roles)
    lines = (file.train and file.train.command) or {}
    for path, text in (file.train.texts() if file.train else {}).items():
        role = path[1] if path[0] == "command" and len(path) > 1 else None
        with_text = [each for each in roles if role in (None, each)]
        if role == DEFAULT:
            with_text = [each for each in roles if each not in lines]
        for name in dict.fromkeys(_PLACEHOLDER.findall(text)):
            fault = _absent(name, data, with_text)
            if fault:
                yield ("train", *path), fault


def _absent(name: str, data: Mapping[str, DataEntry], roles: Collection[str]) -> str:
    """Sentence on `{data.NAME}` if `data:` does not have it, or tasks of these roles do not get
    it."""
    if name not in data:
        after = "add it, such as `data: {digits: gs://BUCKET/prefix}`"
        if data:
            after = did_you_mean(name, data, f"it has {', '.join(data)}")
        return f"names {{data.{shown(name)}}}, which `data:` does not have: {after}"
    source, variable = data[name], f"CLOUDTRAIN_DATA_{name.upper()}"
    to = [source.role] if source.role else TRAINING if source.shard else roles
    without = [role for role in roles if role not in to]
    if not without:
        return ""
    return (
        f"names {{data.{name}}}, which {' and '.join(without)} nodes do not get: write a line for "
        f"each role, or read {variable}, which is set where the data is"
    )


def _dataset(at: Path, entry: DataEntry, roles: Collection[str]) -> Found:
    if entry.source is None:
        yield (*at, "from"), "is missing: the URI of the data, such as gs://BUCKET/prefix"
    role = entry.role
    if role is not None and roles and role not in roles:
        after = did_you_mean(role, roles, f"the roles are {', '.join(roles)}")
        yield (*at, "role"), f"{shown(role)} is no role of this cluster: {after}"
    elif entry.shard and role in NOT_TRAINING:
        yield (*at, "shard"), f"is for nodes that train: {role} reads no shard of the data"
    elif entry.shard and role is None and roles and not set(TRAINING) & set(roles):
        yield (*at, "role"), "is missing: `shard` without it is for chief and workers"
    if entry.rest is not None and not entry.shard:
        yield (*at, "rest"), "requires `shard: true`"


# ── `shared:`: the folder that all nodes share ────────────────────────────────────────────────


def _shared(file: ConfigFile) -> Found:
    shared, train = file.shared, file.train
    if shared is None:
        for path, text in (train.texts() if train else {}).items():
            if "{shared}" in text:
                yield ("train", *path), "names {shared}: add `shared: job`, the folder's name"
        return
    if (shared.folder or "").split("/")[0] == "output":
        yield ("shared", "folder"), "is the task's own output folder: choose another name"
    if train is not None and train.checkpoints is not None:
        text = "leave it out: `shared` lands and comes back as a whole, as a checkpoint folder does"
        yield ("train", "checkpoints"), text
    if _takes_hosts(file) and shared.path is None:
        text = "is missing: a folder that all hosts share already, such as an NFS mount"
        yield ("shared", "path"), text
    if file.provider and facts_of(file.provider).on_this_machine and shared.path is not None:
        text = f"provider {file.provider} shares a folder of its own: leave it out"
        yield ("shared", "path"), text


_RULES: tuple[Callable[[ConfigFile], Found], ...] = (
    _required,
    _commands,
    _setup,
    _notify,
    _code,
    _artifacts,
    _secrets,
    _roles,
    _master,
    _hosts,
    broken_cloud_rules,
    _tpus,
    _ports,
    _estimator,
    _data,
    _shared,
    _budget,
)
