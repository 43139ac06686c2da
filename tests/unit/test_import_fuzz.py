"""Whatever is imported: a config that the reader accepts, or an error in plain words."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloudtrain.cluster.task_launch import fill
from cloudtrain.config import load
from cloudtrain.config.other_tools import IMPORTED
from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.importers import Options, import_job
from cloudtrain.importers.draft import scalar
from cloudtrain.importers.shell_words import clean, shell_line, words

quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
HOSTILE = st.one_of(
    TEXT,
    st.sampled_from(
        ["${X}", "{output}", "$(date)", "# x", ": a", "- b", "'", '"', "\n", "*a", "&b", "!c", "~"]
    ),
)


def settle(source: bytes | None, submit: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        options = Options(here=base, folder=base, base=base)
        try:
            found = import_job(source, "x.yaml", submit, options)
        except (ConfigError, UsageError):
            return
        path = base / "c.yaml"
        path.write_text(found.text, encoding="utf-8")
        assert load(path, {"HOME": "/home/me"}).name == found.config.name


VALUES = st.recursive(
    HOSTILE | st.integers(-5, 70000) | st.booleans() | st.none(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXT, below, max_size=3),
    max_leaves=8,
)
AI_KEYS = st.sampled_from(
    [
        *("scaleTier", "masterType", "workerType", "workerCount", "parameterServerCount", "args"),
        *("masterConfig", "region", "jobDir", "runtimeVersion", "pythonVersion", "pythonModule"),
        *("scheduling", "packageUris", "serviceAccount", "network", "evaluatorCount", "x"),
    ]
)


@quick
@given(st.dictionaries(AI_KEYS, VALUES, max_size=8))
@example({"args": ["${X}", "a'b", "{role}", "é\n"], "pythonModule": "a.b"})
def test_any_ai_platform_job_is_read_or_refused(fields: dict[str, object]) -> None:
    settle(json.dumps({"trainingInput": fields}).encode())


CONTAINER = st.fixed_dictionaries(
    {},
    optional={
        "command": VALUES,
        "args": VALUES,
        "env": st.lists(st.fixed_dictionaries({"name": HOSTILE, "value": VALUES}), max_size=3),
        "image": VALUES,
        "resources": VALUES,
        "workingDir": VALUES,
    },
)


@quick
@given(st.dictionaries(st.sampled_from(["Chief", "Worker", "PS", "Evaluator", "x"]), CONTAINER))
def test_any_tfjob_is_read_or_refused(replicas: dict[str, object]) -> None:
    specs = {
        role: {"replicas": 1, "template": {"spec": {"containers": [container]}}}
        for role, container in replicas.items()
    }
    settle(json.dumps({"kind": "TFJob", "spec": {"tfReplicaSpecs": specs}}).encode())


@quick
@given(VALUES, VALUES, st.dictionaries(HOSTILE, VALUES, max_size=3), VALUES)
def test_any_compose_file_is_read_or_refused(
    command: object, image: object, environment: dict[str, object], build: object
) -> None:
    tf_config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    service = {
        "command": command,
        "image": image,
        "build": build,
        "environment": environment | {"TF_CONFIG": tf_config},
    }
    settle(json.dumps({"services": {"a": service}}).encode())


@quick
@given(VALUES, VALUES, VALUES)
def test_any_vertex_job_is_read_or_refused(machine: object, own: object, rest: object) -> None:
    pool = {"machineSpec": machine, "containerSpec": own, "replicaCount": rest}
    settle(json.dumps({"workerPoolSpecs": [pool, rest], "scheduling": rest}).encode())


@quick
@given(st.lists(HOSTILE, max_size=6), TEXT)
def test_any_submit_line_is_read_or_refused(flags: list[str], tail: str) -> None:
    head = "gcloud ai-platform jobs submit training j --module-name a.b "
    settle(None, head + " ".join(map(shlex.quote, flags)) + " -- " + tail)
    settle(None, "gcloud ai custom-jobs create " + tail)


DOCUMENTS: dict[str, Callable[[object], dict[str, object]]] = {
    "ai_platform": lambda value: {"trainingInput": value},
    "vertex": lambda value: {"workerPoolSpecs": value},
    "compose": lambda value: {"services": {"a": value}},
    "tfjob": lambda value: {"kind": "TFJob", "spec": value},
}
"""By module of a kind: the least document of it with any value. INI is text: below."""


def test_each_kind_that_import_reads_is_tried_with_anything() -> None:
    others = {kind.module: kind for kind in IMPORTED if kind.module != "ini"}
    assert {*DOCUMENTS} == {*others}, "add a document of it to DOCUMENTS here"
    for module, document in DOCUMENTS.items():
        assert others[module].holds(document({}), ""), module


@pytest.mark.parametrize("module", DOCUMENTS)
@quick
@given(VALUES)
def test_any_value_in_a_document_of_a_kind_is_read_or_refused(module: str, value: object) -> None:
    settle(json.dumps(DOCUMENTS[module](value)).encode())


@quick
@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    settle(data)
    settle(b"[cluster]\n" + data)


@quick
@given(st.lists(HOSTILE.filter(lambda text: "\n" not in text), min_size=1, max_size=5))
def test_a_program_gets_exactly_its_words(argv: list[str]) -> None:
    """Past our placeholders and the shell's own quoting."""
    line = fill(shell_line(argv).replace("$${", "${"), {"output": "WRONG", "role": "WRONG"})
    kept = [clean(word) for word in argv]
    if kept == argv:
        assert shlex.split(line) == argv


@quick
@given(HOSTILE)
def test_one_value_is_one_line_of_yaml(text: str) -> None:
    for flow in (False, True):
        assert "\n" not in scalar(text, flow=flow)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('a \'b c\' "d\\"e" f\\ g # comment', ["a", "b c", 'd"e', "f g"]),
        ("a \\\n  b", ["a", "b"]),
        ("''", [""]),
        ("a'b'\"c\"", ["abc"]),
    ],
)
def test_words_are_those_of_a_shell(line: str, expected: list[str]) -> None:
    assert words(line) == expected
