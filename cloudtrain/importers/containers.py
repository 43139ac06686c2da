"""Maps the containers of a job: one command and one environment out of those of all roles."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from cloudtrain.core.cloud import is_cloud
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.importers import command_line, shell_words
from cloudtrain.importers.code_folder import put_image
from cloudtrain.importers.dockerfile import Dockerfile
from cloudtrain.importers.draft import Draft, Options
from cloudtrain.importers.values import Value

GPU = "T4"
"""Stands for the kind that no container names."""

_INDEX_FLAG = re.compile(r"-+[\w-]*(index|rank|task[_-]?id|worker[_-]?id)")
_ROLE_FLAG = re.compile(r"-+[\w-]*(job[_-]?name|role|task[_-]?type|job[_-]?type|type)")


@dataclass(frozen=True, kw_only=True)
class Container:
    """One role's container, or one task's. Words and texts may have marks of `shell_words`."""

    role: str
    index: int | None = None
    where: Value
    image: Value | None = None
    entrypoint: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    environment: Mapping[str, Value] = field(default_factory=dict)
    workdir: str = ""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """`host:port,host:port` → the role that has them."""

    @property
    def own_words(self) -> list[str]:
        return [*self.entrypoint, *self.arguments]

    def words(self, dockerfile: Dockerfile | None) -> list[str]:
        """Words that the container runs: its entrypoint and arguments, each else the image's."""
        if self.entrypoint:
            return self.own_words
        first = list(dockerfile.entrypoint) if dockerfile else []
        if first[:1] == ["/bin/sh"]:
            return first
        rest = self.arguments or (list(dockerfile.command) if dockerfile else [])
        return [*first, *rest] if not (rest and rest[0].startswith("-") and not first) else []


def put_containers(
    draft: Draft, containers: list[Container], dockerfile: Dockerfile | None = None
) -> None:
    """Images, variables and the command of all containers."""
    images: dict[str, Value] = {}
    for named in (each.image for each in containers if each.image):
        images.setdefault(named.text, named)
    for image in images.values() if dockerfile is None else ():
        put_image(draft, image)
    first: dict[str, Value] = {}
    for name, value in (item for each in containers for item in each.environment.items()):
        known = first.setdefault(name, value)
        if known.text != value.text and name != "TF_CONFIG":
            draft.lose(value, f"differs from {known.field}: train.env is the same for all")
    for name, value in first.items():
        if name != "TF_CONFIG":
            command_line.put_variable(draft, name, value)
    _put_commands(draft, containers, dockerfile)


def put_gpus(draft: Draft, role: str, count: int, origin: Value, options: Options) -> None:
    """GPUs by number: no container names their kind, and local nodes share this machine's."""
    draft.gpus = max(draft.gpus, count)
    if is_cloud(options.provider):
        where, text = ("nodes", role, "accelerator"), f"{GPU}:{count}"
        draft.put(where, text, origin, "the kind of GPU", fill_in=True)
    else:
        draft.lose(origin, f"on a cloud, set nodes.{role}.accelerator to KIND:{count}")


# ── the command ──────────────────────────────────────────────────────────────


def _put_commands(draft: Draft, containers: list[Container], dockerfile: Dockerfile | None) -> None:
    lines: dict[str, tuple[str, Container]] = {}
    for each in containers:
        words = each.words(dockerfile)
        if not words:
            text = "the image's own entrypoint is not known: write the command"
            draft.lose(each.where, text)
            continue
        workdir = each.workdir or (dockerfile.folder if dockerfile else "")
        words = command_line.with_code_paths(draft, words, workdir)
        for at, word in enumerate(words[:4]):
            in_image = dockerfile is None and draft.has("setup", "image")
            if word.startswith("/") and word.endswith(".py") and not in_image:
                words[at] = posixpath.basename(word)
                why = f"{word} is a path in the image: {words[at]} in the folder of the code runs"
                draft.lose(each.where, why)
        if each.role not in lines:
            for word in words:
                command_line.name_uris(draft, each.where, word)
            for text in shell_words.placeholders(words[-1]) if words[0].endswith("sh") else ():
                draft.lose(each.where, f"{text} in its shell line is filled in by cloudtrain")
        line = command_line.line_of(_by_task(words, each), draft.exports.values())
        command_line.pass_credentials(draft, words, None)
        known, _ = lines.setdefault(each.role, (line, each))
        if known != line:
            draft.lose(each.where, f"its command is not that of {each.role}'s other tasks: {line}")
    if lines:
        _put_lines(draft, lines)


def _put_lines(draft: Draft, lines: dict[str, tuple[str, Container]]) -> None:
    """One line for all roles, or a line each: `default` is the most frequent one."""
    texts = [line for line, _ in lines.values()]
    usual = max(texts, key=texts.count)
    if len(set(texts)) == 1:
        draft.put("train.command", usual, next(iter(lines.values()))[1].where)
        return
    for role, (line, container) in lines.items():
        if line != usual:
            draft.put(("train", "command", role), line, container.where)
    origin = next(container.where for line, container in lines.values() if line == usual)
    draft.put("train.command.default", usual, origin)


def _by_task(words: list[str], container: Container) -> list[str]:
    """The words with worker 1's `--task_index=1 --job_name worker` as `{index}` and `{role}`, and
    the addresses of a role as `{worker.hosts}`."""
    found = list(words)
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if not equals and at + 1 < len(words):
            value = words[at + 1]
        new = _filled(flag, value, container)
        if new is not None and equals:
            found[at] = f"{flag}={new}"
        elif new is not None and at + 1 < len(words):
            found[at + 1] = new
    return found


def _filled(flag: str, value: str, container: Container) -> str | None:
    if value in container.hosts:
        return shell_words.ours(f"{container.hosts[value]}.hosts")
    if str(container.index) == value and _INDEX_FLAG.fullmatch(flag):
        return shell_words.ours("index")
    if value.lower() == container.role and _ROLE_FLAG.fullmatch(flag):
        return shell_words.ours("role")
    return None
