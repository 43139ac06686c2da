"""Reads other tools' descriptions of a training into a config of ours."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from cloudtrain.config import load, other_tools
from cloudtrain.config.other_tools import IMPORTED, ImportedKind
from cloudtrain.config.yaml_source import Block, documents, parse, shown
from cloudtrain.core.cloud import cloud_of, clouds, facts_of, providers
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.store_kinds import kind_of
from cloudtrain.importers.code_folder import IMAGE, settle_image
from cloudtrain.importers.draft import Draft, DraftEntry, Options, yaml_text
from cloudtrain.importers.submit_line import WHERE, read_submit
from cloudtrain.importers.values import Value, Values, values_of
from cloudtrain.playbooks import tensorflow, tensorflow_releases
from cloudtrain.training.strategies import STRATEGIES, strategy_for

__all__ = ["Imported", "Options", "import_job"]


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A config made of another tool's file."""

    kind: str
    text: str
    """The YAML file, with comments."""
    config: ClusterConfig
    unmapped: tuple[Problem, ...]
    """What the source says and the config does not."""
    fill_in: tuple[str, ...]
    """Fields that the source has no value for: placeholders."""


def import_job(data: bytes | None, file: str, submit: str | None, options: Options) -> Imported:
    """The config that a file, a submit line or both describe. Raises UsageError for what is not
    recognized, ConfigError for what cannot be mapped at all."""
    if submit is not None:
        options = replace(options, submit=read_submit(submit))
    return _finished(_draft(data, file, options), options)


def _draft(data: bytes | None, file: str, options: Options) -> Draft:
    name, line = shown(file, 200), options.submit
    readable = "; ".join(row.form for row in IMPORTED)
    if data is None:
        if line is None:
            raise UsageError("nothing to import", hint="name a FILE, pass --submit, or both")
        return _read(line.kind, Values(WHERE), options)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = ""
    tool = other_tools.tool_of(data)
    other = tool if tool is not None and not tool.is_imported else None
    tree, problems = parse(_one_document(_readable(data, text)), file, {})
    kind = other_tools.kind_of(tree, text)
    if problems and not tree and other is None and kind is None:
        raise ConfigError(problems, hint=f"`import` reads {readable}")
    if line is not None and not (kind and kind.submit):
        forms = " or ".join(row.form for row in IMPORTED if row.submit)
        raise UsageError(f"--submit submits no {name}", hint=f"it goes with {forms}")
    if kind is not None:
        values = values_of(tree, file)
        if tree:
            values.problems.extend(problems)
        else:
            values.put((), Value(text=text, file=file, field=""))
        return _read(kind, values, options)
    if other is not None:
        what = f"{name} is {other.what}, which `import` does not read"
        raise UsageError(what, hint=other.way(name))
    raise UsageError(f"{name} is nothing that `import` reads", hint=f"it reads {readable}")


def _read(kind: ImportedKind, values: Values, options: Options) -> Draft:
    draft = Draft(kind=kind.title, file=values.file)
    import_module(f"{__name__}.{kind.module}").read(draft, values, options)
    values.rest()
    draft.problems += values.problems
    return draft


def _one_document(data: bytes) -> bytes:
    """The first document of a kind that stands `among_others`, if the file has several, else the
    first; the others' lines stay, empty."""
    lines = data.split(b"\n")
    marks = [at for at, line in enumerate(lines) if re.match(rb"---(\s|$)", line)]
    parts = [range(a, b) for a, b in zip([0, *marks], [*marks, len(lines)], strict=True)]
    jobs = [part for part in parts if marks and _stands_among_others([lines[at] for at in part])]
    if len(marks) < 2 and not (marks and jobs):
        return data
    kept = jobs[0] if jobs else parts[0]
    return b"\n".join(line if at in kept else b"" for at, line in enumerate(lines))


def _stands_among_others(lines: list[bytes]) -> bool:
    text = b"\n".join(lines).decode("utf-8", "replace")
    kinds = (other_tools.kind_of(tree, text) for tree in documents(text) if isinstance(tree, Block))
    return any(kind is not None and kind.among_others for kind in kinds)


def _readable(data: bytes, text: str) -> bytes:
    """JSON as YAML reads it: without tabs between values, and characters beyond 16 bits whole."""
    if not text.lstrip().startswith("{"):
        return data
    try:
        json.loads(text)
    except ValueError:
        return data
    whole = re.sub(
        r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}",
        lambda found: json.loads(f'"{found[0]}"'),
        text,
    )
    return whole.replace("\t", " ").encode("utf-8", "surrogatepass")


# ── a draft is completed (name, strategy, placeholders), and proved by the config's own reader ───


def _finished(draft: Draft, options: Options) -> Imported:
    """The complete config. Raises ConfigError if the source cannot be made into a valid one."""
    _put_name(draft)
    _put_provider(draft, options)
    if options.strategy:
        draft.put("strategy", options.strategy)
    else:
        _put_strategy_by_roles(draft)
    settle_image(draft)
    config = _without_refused(draft, options)
    in_code = None if options.strategy else options.strategy_in_code
    found = in_code(config) if in_code else None
    if found is not None and STRATEGIES[found].launched:
        draft.put("strategy", found, comment="as the code has it")
        config = _without_refused(draft, options)
    return Imported(
        kind=draft.kind,
        text=yaml_text(draft),
        config=config,
        unmapped=tuple(draft.problems),
        fill_in=draft.fill_ins(),
    )


def _without_refused(draft: Draft, options: Options) -> ClusterConfig:
    """The config of a draft, which loses each value that the config's reader refuses. Raises
    ConfigError if what is left cannot be one, either."""
    _put_placeholders(draft)
    while True:
        once: dict[tuple[str, int | None, str, str], Problem] = {}
        for each in draft.problems:  # parts that several roles share by an alias: the same lines
            field = "" if each.line else each.field
            once.setdefault((each.file, each.line, field, each.text), each)
        draft.problems = list(once.values())
        try:
            return _loaded(draft, options)
        except ConfigError as error:
            _drop_refused(draft, error, options)


def cluster_name(text: str) -> str:
    """A name made to fit `[a-z][a-z0-9-]{0,29}`; "" if nothing of it fits."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()[:200])
    return re.sub(r"^[^a-z]+", "", words)[:30].strip("-")


def _put_name(draft: Draft) -> None:
    entry = draft.entries.get(("name",))
    given = cluster_name(str(entry.value)) if entry else ""
    if entry and given:
        comment = f"was {entry.value}" if given != entry.value else ""
        draft.put("name", given, entry.origin, comment)
        return
    path = Path(draft.file)
    found = cluster_name(path.stem)
    usual = found in ("config", "docker-compose", "compose", "job", "cluster", "submit", "tfjob")
    found = cluster_name(path.absolute().parent.name) if usual or not found else found
    draft.put("name", found or "imported", comment="unique in an account")


_OF_A_CLOUD = ("placement", "project", "network", "identity", "resource_group", "disk_key", "tags")


def _put_provider(draft: Draft, options: Options) -> None:
    """The wanted provider; machines and stores of another cloud fall away."""
    source = draft.get("provider")
    local = next(row.name for row in providers() if row.on_this_machine)
    wanted = options.provider or source or local
    others = ", ".join(row.name for row in clouds())
    draft.put("provider", wanted, comment="" if source == wanted else f"or {others}")
    if wanted == source or source is None:
        return
    for path in [path for path in draft.entries if path[0] in _OF_A_CLOUD]:
        del draft.entries[path]
    store = draft.entries.get(("artifacts", "store"))
    if facts_of(wanted).free:  # no machine types, no GPUs, and a folder as the store
        for path in list(draft.entries):
            if path[0] == "nodes" and path[-1] in ("machine", "accelerator", "disk_gb", "spot"):
                del draft.entries[path]
        if store is not None:
            uri = _local_store(draft.get("name"))
            draft.put("artifacts.store", uri, store.origin, f"instead of {store.value}")
        return
    for path, entry in list(draft.entries.items()):
        if path[0] == "nodes" and path[-1] == "machine":
            text = f"{entry.value} is no machine of {wanted}: `cloudtrain gpus` lists them"
            draft.lose(entry.origin or _whole(draft), text)
            del draft.entries[path]
    cloud = cloud_of(wanted)
    if cloud and store and not str(store.value).startswith(cloud.store_scheme):
        comment = f"another cloud's: {cloud.store_scheme}:// is this one's own"
        draft.put("artifacts.store", store.value, store.origin, comment)


def _put_strategy_by_roles(draft: Draft) -> None:
    """Put the strategy, with `tf_config` where it would give none to a cluster."""
    counts = draft.counts()
    for host in draft.get("hosts") or ():
        counts[host["role"]] = counts.get(host["role"], 0) + 1
    roles = [role for role, count in counts.items() if count]
    if roles == ["worker"] and counts["worker"] == 1 and not draft.has("hosts"):
        draft.entries.pop(("nodes", "chief"), None)
        draft.rename_role("worker", "chief")
        counts = {"chief": 1}
    elif set(roles) == {"worker"} and not draft.has("hosts"):
        off = DraftEntry(value=False, comment="worker 0 saves the model")
        draft.entries = {("nodes", "chief"): off, **draft.entries}
    found = strategy_for(counts, draft.gpus)
    if not found.roles and not draft.has("train", "tf_config") and len(roles) > 1:
        draft.put("train.tf_config", True, comment="a cluster of its own")
    draft.put("strategy", found.name, comment="by the roles: check it against the script")


def _put_placeholders(draft: Draft) -> None:
    """Put in what a config needs and the source may not have."""
    provider, name = draft.get("provider"), draft.get("name") or "imported"
    cloud = cloud_of(provider)
    if not draft.has("name"):
        draft.put("name", name)
    if cloud and not draft.has("placement"):
        draft.put("placement", [cloud.first_region], comment="the zones or regions", fill_in=True)
    software = IMAGE if draft.has(*IMAGE) else ("setup", "tensorflow")
    for known, field, value, comment in (
        (software, "setup.tensorflow", tensorflow_releases.newest(), "the script's version"),
        (("code",), "code.path", ".", "the folder of the script"),
        (("train", "command"), "train.command", "python train.py --output {output}", "the line"),
    ):
        if not draft.has(*known):
            draft.put(field, value, comment=comment, fill_in=True)
    kind = kind_of(f"{cloud.store_scheme}://") if cloud else None
    if kind is not None and not draft.has("artifacts", "store"):
        uri = f"{kind.scheme}://{kind.example}/{name}"
        draft.put("artifacts.store", uri, comment="the bucket", fill_in=True)
    elif not draft.has("artifacts", "store"):
        draft.put("artifacts.store", _local_store(name))


def _local_store(name: str) -> str:
    """One folder for each project, as `init` writes it."""
    return f"file://${{HOME}}/cloudtrain-artifacts/{name}"


def _loaded(draft: Draft, options: Options) -> ClusterConfig:
    """The config of the draft's own text. Raises ConfigError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{draft.get('name')}.yaml")
        path.write_text(yaml_text(draft), encoding="utf-8")
        config = load(path)
    config = replace(config, source=str(options.base / f"{config.name}.yaml"))
    problems = tensorflow.problems(config)
    if problems:
        raise ConfigError(problems)
    return config


def _drop_refused(draft: Draft, error: ConfigError, options: Options) -> None:
    """Drop each refused value, and report it at its line in the source. Raises ConfigError if only
    placeholders are refused."""
    own = [replace(problem, file=draft.file, line=None) for problem in error.problems]
    roles = re.compile(r"nodes(\.[^.]+)?|strategy|hosts")
    between = next((problem for problem in own if roles.fullmatch(problem.field)), None)
    if between is not None:
        name = draft.get("strategy")
        _put_strategy_by_roles(draft)
        if options.strategy or draft.get("strategy") == name:
            raise ConfigError(own, hint=f"pass --strategy: {', '.join(STRATEGIES)}")
        draft.lose(_whole(draft), f"{name}, as the code has it, does not fit: {between.text}")
        return
    before = dict(draft.entries)
    for problem in own:
        for entry in draft.without(problem.field) if problem.field else ():
            draft.lose(entry.origin or _whole(draft), f"as {problem.field}: {problem.text}")
    _put_placeholders(draft)
    if draft.entries == before:  # a placeholder that is refused would be put in for ever
        raise ConfigError(own)


def _whole(draft: Draft) -> Value:
    return Value(file=draft.file, field="")
