"""Reads other tools' descriptions of a training into a config of ours."""

from __future__ import annotations

import json
import re

from cloudtrain.config.other_tools import tool_of
from cloudtrain.config.yaml_source import parse, shown
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.importers.ai_platform import read_ai_platform
from cloudtrain.importers.cluster_ini import is_cluster_ini, read_cluster_ini
from cloudtrain.importers.compose import read_compose
from cloudtrain.importers.draft import Draft, Options
from cloudtrain.importers.finish import Imported, finish
from cloudtrain.importers.submit_line import WHERE, Submit, read_submit
from cloudtrain.importers.tfjob import is_tfjob, read_tfjob
from cloudtrain.importers.values import Values, values_of
from cloudtrain.importers.vertex import is_vertex, read_vertex

__all__ = ["Imported", "Options", "import_job"]

KINDS = (
    "an AI Platform config.yaml (trainingInput:)",
    "a Vertex AI CustomJob (workerPoolSpecs:)",
    "a compose file with TF_CONFIG (services:)",
    "a TFJob (kind: TFJob)",
    "an INI file with [cluster]",
)
"""What can be read, as an unrecognized file's error lists it."""


def import_job(data: bytes | None, file: str, submit: str | None, options: Options) -> Imported:
    """The config that a file, a submit line or both describe. Raises UsageError for what is not
    recognized, ConfigError for what cannot be mapped at all."""
    line = read_submit(submit) if submit is not None else None
    return finish(_draft(data, file, line, options), options)


def _draft(data: bytes | None, file: str, line: Submit | None, options: Options) -> Draft:
    if data is None:
        if line is None:
            raise UsageError("nothing to import", hint="name a FILE, pass --submit, or both")
        if line.is_vertex:
            return read_vertex(Values(WHERE), line, options)
        return read_ai_platform(Values(WHERE), line, options)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = ""
    if is_cluster_ini(text):
        return read_cluster_ini(text, file, options)
    tool = tool_of(data)
    other = tool if tool is not None and not tool.is_imported else None
    tree, problems = parse(_one_document(_readable(data, text)), file, {})
    if problems and not tree and other is None:
        raise ConfigError(problems, hint=f"`import` reads {'; '.join(KINDS)}")
    values = values_of(tree, file)
    values.problems.extend(problems)
    if values.has("trainingInput"):
        return read_ai_platform(values, line, options)
    if is_vertex(values):
        return read_vertex(values, line, options)
    if line is not None:
        raise UsageError(
            f"--submit submits no {shown(file, 200)}", hint=f"it goes with {KINDS[0]} or {KINDS[1]}"
        )
    if is_tfjob(values):
        return read_tfjob(values, options)
    if values.has("services"):
        return read_compose(values, options)
    if other is not None:
        name = shown(file, 200)
        what = f"{name} is {other.what}, which `import` does not read"
        raise UsageError(what, hint=other.way(name))
    raise UsageError(
        f"{shown(file, 200)} is nothing that `import` reads", hint=f"it reads {'; '.join(KINDS)}"
    )


def _one_document(data: bytes) -> bytes:
    """The document with a TFJob, if the file has several; the others' lines stay, empty."""
    lines = data.split(b"\n")
    marks = [at for at, line in enumerate(lines) if re.match(rb"---(\s|$)", line)]
    parts = [range(a, b) for a, b in zip([0, *marks], [*marks, len(lines)], strict=True)]
    jobs = [part for part in parts if any(re.match(rb"kind:.*TFJob", lines[n], re.I) for n in part)]
    if len(marks) < 2 and not (marks and jobs):
        return data
    kept = jobs[0] if jobs else parts[0]
    return b"\n".join(line if at in kept else b"" for at, line in enumerate(lines))


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
