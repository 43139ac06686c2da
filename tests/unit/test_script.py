"""What is read from a script's source: its syntax tree alone, offline."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.script.facts import ScriptFacts, strategies_in, strategy_in
from cloudtrain.script.program import ModuleEntry, read_program
from cloudtrain.script.releases import missing_in
from cloudtrain.script.shell_line import Started, started_by

ROOT = Path(__file__).parents[2]


def facts_of(source: str, **others: str) -> ScriptFacts:
    """Facts of main.py; `others`: further modules, `a__b` for a/b.py, INIT for __init__."""
    paths = {name: name.replace("__", "/").replace("INIT", "__init__") for name in others}
    files = {f"{paths[name]}.py": dedent(text) for name, text in others.items()}
    files["main.py"] = dedent(source)
    entry = ModuleEntry(path="main.py", root=".")
    return read_program(entry, lambda path: files[path].encode() if path in files else None)


# ── strategies ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("tf.distribute.MirroredStrategy()", "mirrored"),
        ("tf.distribute.MultiWorkerMirroredStrategy()", "multi_worker_mirrored"),
        ("tf.distribute.experimental.MultiWorkerMirroredStrategy()", "multi_worker_mirrored"),
        ("tf.distribute.experimental.CollectiveAllReduceStrategy()", "multi_worker_mirrored"),
        ("tf.distribute.experimental.ParameterServerStrategy(r)", "parameter_server"),
        ("tf.distribute.ParameterServerStrategy(r)", "parameter_server"),
        ("tf.compat.v1.distribute.experimental.ParameterServerStrategy()", "parameter_server"),
        ("tf.distribute.experimental.CentralStorageStrategy()", "central_storage"),
        ("tf.distribute.OneDeviceStrategy('/gpu:0')", "one_device"),
        ("tf.distribute.TPUStrategy(r)", "tpu"),
        ("tf.device(tf.train.replica_device_setter(cluster=c))", "custom"),
        ("tf.contrib.distribute.MirroredStrategy(num_gpus=2)", "mirrored"),
        ("tf.keras.Sequential()", None),
        ("isinstance(s, tf.distribute.MirroredStrategy)", None),
    ],
)
def test_a_script_shows_its_strategy(line: str, name: str | None) -> None:
    assert strategy_in(facts_of(f"import tensorflow as tf\n{line}\n")) == name


@pytest.mark.parametrize(
    "source",
    [
        "from tensorflow.distribute import MirroredStrategy as M\nM()",
        "import tensorflow.compat.v2 as tf\ntf.distribute.MirroredStrategy()",
        "from tensorflow import distribute\ndistribute.MirroredStrategy()",
        "from tensorflow.python.distribute import mirrored_strategy as m\nm.MirroredStrategy()",
        "import tensorflow as tf\nd = tf.distribute\nd.MirroredStrategy()",
        "import tensorflow as tf\nKINDS = {'a': tf.distribute.MirroredStrategy}",
    ],
)
def test_it_is_found_under_any_name(source: str) -> None:
    assert strategy_in(facts_of(source)) == "mirrored"


@pytest.mark.parametrize("library", ["tensorflow", "keras", "tensorflow.keras"])
def test_horovod_is_one_too(library: str) -> None:
    assert strategy_in(facts_of(f"import horovod.{library} as hvd\nhvd.init()")) == "horovod"


def test_a_script_with_several_leaves_the_choice_open() -> None:
    facts = facts_of(
        """
        import os
        import tensorflow as tf
        if "TF_CONFIG" in os.environ:
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
        else:
            strategy = tf.distribute.MirroredStrategy()
        """
    )
    found = strategies_in(facts)
    assert {name: str(use) for name, use in found.items()} == {
        "multi_worker_mirrored": "main.py:5",
        "mirrored": "main.py:7",
    }
    assert strategy_in(facts) is None


def test_the_modules_of_its_own_code_are_read_and_no_others() -> None:
    facts = facts_of(
        "import pkg.task\nimport numpy",
        pkg__INIT="",
        pkg__task="from . import build\nfrom .deep.er import x",
        pkg__build="import tensorflow as tf\ntf.distribute.MirroredStrategy()",
        pkg__deep__INIT="",
        pkg__deep__er="import sklearn\nx = 1",
        other="import horovod.keras as h; h.init()",
    )
    assert strategy_in(facts) == "mirrored"
    assert facts.files[0] == "main.py"
    assert set(facts.files) == {
        *("main.py", "pkg/__init__.py", "pkg/task.py", "pkg/build.py"),
        *("pkg/deep/__init__.py", "pkg/deep/er.py"),
    }
    assert facts.libraries == {"numpy", "sklearn", "tensorflow"}


def test_what_an_imported_module_does_as_a_script_of_its_own_does_not_count() -> None:
    facts = facts_of(
        "import other",
        other="""
        import tensorflow as tf
        if __name__ == "__main__":
            tf.distribute.MirroredStrategy()
        """,
    )
    assert strategy_in(facts) is None


# ── releases ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "release", "advised"),
    [
        ("import tensorflow_core", (2, 21), "2.1"),
        ("from tensorflow.contrib import slim", (2, 3), "1.15"),
        ("import tensorflow as tf\ntf.contrib.slim", (2, 3), "1.15"),
        ("import tensorflow as tf\ntf.estimator.RunConfig()", (2, 16), "2.15"),
        ("import tensorflow as tf\ntf.placeholder(tf.float32)", (2, 0), "1.15"),
        ("import tensorflow as tf\ntf.compat.v1.estimator.Estimator()", (2, 21), "2.15"),
        ("s.experimental_run_v2(f)", (2, 4), "2.3"),
        ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()", (2, 3), "2.4"),
    ],
)
def test_a_name_that_the_release_lacks_is_found(
    source: str, release: tuple[int, int], advised: str
) -> None:
    (need,) = missing_in(release, facts_of(source))
    assert need.advised == advised


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf\ntf.compat.v1.placeholder(tf.float32)",
        "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\ntf.placeholder(tf.float32)",
        "import tensorflow as tf\ntf = tf.compat.v1\ntf.placeholder(tf.float32)",
        "try:\n  import tensorflow.compat.v1 as tf\nexcept ImportError:\n"
        "  import tensorflow as tf\ntf.placeholder(tf.float32)",
        "import tensorflow as tf\nif hasattr(s, 'run'):\n  s.run(f)\n"
        "else:\n  s.experimental_run_v2(f)",
        "import tensorflow as tf\nif tf.__version__ < '2':\n  tf.placeholder(tf.float32)",
        "import tensorflow as tf\ntry:\n  tf.contrib.slim\nexcept AttributeError:\n  pass",
        "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()",
    ],
)
def test_what_another_release_has_behind_a_condition_is_not(source: str) -> None:
    assert missing_in((2, 21), facts_of(source)) == ()


# ── URIs, roles, TF_CONFIG ───────────────────────────────────────────────────


def test_uris_are_found_where_they_name_data_and_not_in_texts() -> None:
    facts = facts_of(
        '''
        """Reads gs://docstring/x."""
        import argparse
        DATA = "gs://bucket/data"
        parser = argparse.ArgumentParser(description="s3://text")
        parser.add_argument("--out", default="s3://bucket/out", help="gs://help/text")
        if DATA.startswith("gs://") or DATA == "gs://compared/x":
            print("gs://printed/x")
        path = f"gs://{DATA}/train"
        raise ValueError("gs://raised/x")
        '''
    )
    assert [(use.name, use.line) for use in facts.uris] == [
        ("gs://bucket/data", 4),
        ("s3://bucket/out", 6),
        ("gs://{…}", 9),
    ]


CHIEFS = [
    ("if kind == 'chief':\n  model.save('x')", 1),
    ("def is_chief(kind):\n  return kind == 'chief'", 2),
    ("if kind == 'chief' or kind == 'worker' and index == 0:\n  pass", None),
    ("def f(kind, i):\n  if kind == 'worker':\n    return i == 0\n  return kind == 'chief'", None),
    ("if kind == 'chief' or 'chief' not in cluster:\n  pass", None),
    ("if kind in ('chief', 'master'):\n  pass", None),
    ("if kind in ('worker', 'ps'):\n  join()\nif kind == 'chief':\n  save()", 3),
]


@pytest.mark.parametrize(("source", "line"), CHIEFS)
def test_a_script_that_knows_only_a_chief_is_told_from_one_that_knows_worker_0(
    source: str, line: int | None
) -> None:
    found = facts_of(source).chief_only
    assert (found[0].line if found else None) == line


def test_only_a_master_is_known() -> None:
    assert facts_of("if kind == 'master': save()").master_only
    assert not facts_of("if kind == 'master' or kind == 'chief': pass").master_only


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("c = json.loads(os.environ['TF_CONFIG'])\nc['job']", ["", "job"]),
        ("c = json.loads(os.environ.get('TF_CONFIG', '{}'))\nc['environment']", ["environment"]),
        ("t = os.environ.get('TF_CONFIG')\nc = json.loads(t)\nc['a']['b']", ["a.b", "a"]),
        (
            "c = json.loads(os.getenv('TF_CONFIG'))\nt = c.get('task', {})\nt['trial']",
            ["task.trial"],
        ),
        ("c = json.loads(os.getenv('TF_CONFIG'))\nc.get('job')", []),
        ("c = json.loads(os.getenv('TF_CONFIG'))\nif 'job' in c:\n  c['job']", []),
        ("if 'TF_CONFIG' in os.environ:\n  os.environ['TF_CONFIG']", []),
        ("c = json.loads(open('x').read())\nc['job']", []),
        ("c = json.loads(os.getenv('TF_CONFIG'))\nc = {}\nc['job']", []),
        ("self.c = json.loads(os.getenv('TF_CONFIG'))\nself.c['job']", ["job"]),
        ("os.environ['TF_CONFIG'] = '{}'", []),
    ],
)
def test_keys_that_a_script_needs_of_tf_config(source: str, keys: list[str]) -> None:
    assert [use.name for use in facts_of(source).tf_config] == keys


# ── what cannot be parsed ────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "source",
    [
        "print 'Python 2'",
        "def f(:",
        "x = " + "(" * 5_000,
        "x = " + "-" * 100_000 + "1",
        "x = " + "a." * 50_000 + "b",
        "x = " + "+".join("a" * 30_000),
        "\0",
        "# coding: nothing\n",
    ],
)
def test_what_this_python_cannot_parse_is_named_or_passed_over(source: str) -> None:
    facts = facts_of(source)
    assert facts.files == ("main.py",) or str(facts.unreadable[0]).startswith("main.py:")


def test_a_very_large_file_and_very_many_modules_are_passed_over() -> None:
    assert facts_of("#" * 1_000_001).files == ()
    chain = {f"m{n}": f"import m{n + 1}" for n in range(500)}
    assert len(facts_of("import m0", **chain).files) == 100


SOURCES = [
    path.read_text()
    for folder in ("examples", "tests/strangers")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(source: bytes) -> None:
    read_program(ModuleEntry(path="main.py", root="."), {"main.py": source}.get)


@given(st.sampled_from(SOURCES), st.data())
def test_no_part_of_a_real_script_makes_it_raise(source: str, data: st.DataObject) -> None:
    lines = source.splitlines()
    start = data.draw(st.integers(0, len(lines)))
    end = data.draw(st.integers(start, len(lines)))
    facts_of("\n".join(lines[start:end]))


# ── the shell line ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "started"),
    [
        ("python x.py --a 1", Started(file="x.py", arguments=("--a", "1"))),
        ("A=1 exec python3 -u x.py", Started(file="x.py")),
        ("python -m a.b --x=y", Started(module="a.b", arguments=("--x=y",))),
        ("cd sub && cd deep && python x.py", Started(file="x.py", folder="sub/deep")),
        ("python x.py 'a b'; echo", Started(file="x.py", arguments=("a b",))),
        ("python x.py a 2>&1 | tee y", Started(file="x.py", arguments=("a",), exact=False)),
        ("python x.py \\\n  --a", Started(file="x.py", arguments=("--a",))),
        ("python x.py $A", Started(file="x.py", arguments=("$A",), exact=False)),
        ('export PATH=/a:"$PATH" && export B=1 && python x.py', Started(file="x.py")),
        ("export PATH=/a && python x.py", None),
        ("export PYTHONPATH=a:$PYTHONPATH; python x.py", None),
        ("accelerate launch x.py", None),
        ("python x.py '", None),
        ("cd $X && python x.py", None),
        ("PYTHONPATH=a python x.py", None),
        ("", None),
    ],
)
def test_what_a_line_starts(line: str, started: Started | None) -> None:
    assert started_by(line) == started


@given(st.text(max_size=60))
def test_no_line_makes_it_raise(line: str) -> None:
    started_by(line)
    started_by(f"python x.py {line}")
