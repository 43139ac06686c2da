"""Placeholders and values to fill in, before anything is created."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.checks.commands import marked, placeholder_notes
from cloudtrain.checks.findings import found_ahead
from cloudtrain.cli.plan import as_document, text
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.init import providers
from cloudtrain.commands.plan import plan_report
from cloudtrain.config import load
from cloudtrain.core.model import ClusterConfig, Train
from cloudtrain.core.paths import size_text
from tests.support.code_parts import config, write
from tests.support.offline_checks_parts import written

TEMPLATES = Path(__file__).parents[2] / "configs" / "templates"


def refused(config: ClusterConfig) -> list[str]:
    return [
        line.split(": ", 1)[1]
        for finding in found_ahead(config)
        if not finding.ok
        for line in finding.text.splitlines()
    ]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("ouput", "output"),
        ("OUTPUT", "output"),
        ("outputs", "output"),
        ("output_dir", "output"),
        ("rol", "role"),
        ("chief_ip", "chief.ip"),
        ("worker.host", "worker.hosts"),
        ("worker_hosts", "worker.hosts"),
        ("indx", "index"),
    ],
)
def test_a_misspelt_placeholder_is_refused_with_the_one_that_is_meant(
    tmp_path: Path, word: str, meant: str
) -> None:
    nodes = {"chief": {}, "worker": {"count": 1}}
    made = written(tmp_path, nodes=nodes, train={"command": f"python t.py --out={{{word}}}/x"})
    asked = f"{{{word}}} is no placeholder: did you mean {{{meant}}}?"
    assert refused(made) == [f"train.command: {asked} (\\{{{word}}} keeps it)"]
    kept = written(tmp_path, nodes=nodes, train={"command": f"python t.py --out=\\{{{word}}}/x"})
    assert refused(kept) == []
    in_env = written(tmp_path, nodes=nodes, train={"command": "a", "env": {"D": f"{{{word}}}/x"}})
    assert refused(in_env) == []
    assert placeholder_notes(in_env) == (f"train.env.D: {asked}",)


@pytest.mark.parametrize(
    "line",
    [
        "cp {a,b}.py /tmp",
        "python t.py --name {epoch}-{val_loss}.ckpt --step {step} --rank {rank} --world {size}",
        "python -c 'print(f\"{outputs}\")'",
        "awk '{print}' x && awk '{output}' y",
        "awk '{roles}' x",
        'python t.py --json \'{"output": 1, "roles": {}}\'',
        "echo ${outputs} {} {1..3} {{outputs}}",
        "find . -name x -exec echo {} +",
        "curl 'http://x/{outputs}?a=b'",
        "python t.py --template 'see {roles} there'",
        "python t.py --dir {output}/{role}{index}/{run} --hosts {worker.hosts} {chief.ip}",
    ],
)
def test_other_braces_are_left_alone(tmp_path: Path, line: str) -> None:
    made = replace(written(tmp_path), train=Train(command=line, env={"A": line}))
    assert refused(made) == []
    assert placeholder_notes(made) == ()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"artifacts": {"store": "gs://my-bucket/runs"}},
            "artifacts.store: gs://my-bucket/runs is the template's: put a bucket of yours",
        ),
        (
            {"artifacts": {"store": "az://myaccount/my-container/x"}},
            "artifacts.store: az://myaccount/my-container/x is the template's: put a bucket of "
            "yours",
        ),
        (
            {"data": {"digits": "s3://my-bucket/digits"}},
            "data.digits: s3://my-bucket/digits is the template's: put a bucket of yours",
        ),
        (
            {"train": {"command": "python t.py --epochs FILL_IN_EPOCHS"}},
            "train.command: FILL_IN_EPOCHS is still to be filled in",
        ),
        (
            {"train": {"command": "a", "env": {"X": "FILL_IN"}}},
            "train.env.X: FILL_IN is still to be filled in",
        ),
    ],
)
def test_a_value_of_nobodys_is_refused(
    tmp_path: Path, values: dict[str, object], said: str
) -> None:
    made = written(tmp_path, **values)
    assert refused(made) == [said]
    assert [each.what for each in found_ahead(made) if not each.ok] == ["fill in"]


def test_a_bucket_of_the_users_own_storage_may_have_any_name(tmp_path: Path) -> None:
    own = {
        "artifacts": {"store": "s3://my-bucket/x"},
        "endpoints": {"storage": "https://minio.lab"},
    }
    assert refused(written(tmp_path, **own)) == []
    assert refused(written(tmp_path, artifacts={"store": "gs://my-bucket-2/x"})) == []


def test_marked_lines_are_listed_with_what_they_want(tmp_path: Path) -> None:
    source = tmp_path / "m.yaml"
    source.write_text(
        "# Lines marked FILL IN have no counterpart in the source.\n"
        "name: m\nplacement: [us-central1]   # FILL IN: the zones or regions\n"
        "project: x    # FILL IN\ncode: {path: .}  # not FILL IN\n"
    )
    assert marked(replace(config(tmp_path), source=str(source))) == (
        "m.yaml:3: `placement: [us-central1]` is marked FILL IN (the zones or regions): put your "
        "own, or remove the mark",
        "m.yaml:4: `project: x` is marked FILL IN: put your own, or remove the mark",
    )


@pytest.mark.parametrize("provider", sorted(providers()))
def test_a_template_marks_what_up_refuses_of_it(provider: str) -> None:
    fresh = load(TEMPLATES / f"{provider}.yaml")
    lines = {text.partition(": ")[0] for text in refused(fresh) if "template" in text}
    assert lines <= {"artifacts.store"}
    marks = [line for line in Path(fresh.source).read_text().splitlines() if "# FILL IN" in line]
    assert [line.split(":")[0].strip() for line in marks] == ["store"] * len(lines)
    assert marked(fresh) == ()


# ── what plan says of the code ───────────────────────────────────────────────


def test_plan_shows_what_is_delivered_and_left_out_by_size(tmp_path: Path) -> None:
    files = {".gitignore": "data/\n", "train.py": "", "results/.cloudtrain-fetched": "x"}
    write(
        tmp_path,
        {
            **files,
            ".env": "TOKEN=x",
            "data/train.csv": "",
            "assets/a": "",
            "assets/b": "",
            "tiny": "1",
        },
    )
    for name, megabytes in {"data/train.csv": 3_100, "assets/a": 70, "assets/b": 30}.items():
        os.truncate(tmp_path / name, megabytes * 10**6)
    made = written(tmp_path, code={"path": "."}, train={"command": "python train.py"})
    report = plan_report(make_plan(made))
    files_of_code = len([".gitignore", "train.py", "assets/a", "assets/b", "tiny", "t.yaml"])
    assert [line for line in text(as_document(report)) if line[2:6] in ("code", "left")] == [
        f"  code       {files_of_code} files, 100 MB: assets/ 100 MB",
        "  left out   .env 7 B (a file of keys by its name), "
        "data/ 3.1 GB (.gitignore:1 `data/`), results/ 1 B (fetched from a run)",
    ]


def test_plan_shows_too_much_with_its_sizes_and_says_that_up_refuses_it(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "", "results/a": ""})
    os.truncate(tmp_path / "results" / "a", 1_200_000_000)
    (tmp_path / "out").symlink_to("/etc/passwd")
    made = written(tmp_path, code={"path": "."}, train={"command": "python train.py"})
    lines = text(as_document(plan_report(make_plan(made))))
    assert "  code       3 files, 1.2 GB: results/ 1.2 GB" in lines
    assert [line for line in lines if "refuses" in line] == [
        f"  note: code: {tmp_path}/out: a symlink leads out of the folder, to /etc/passwd: `up` "
        "refuses it",
        "  note: code: more than 1 GB: `up` refuses it",
    ]


def test_plan_takes_a_file_that_is_not_filled_in_and_says_that_up_does_not(tmp_path: Path) -> None:
    made = written(tmp_path, train={"command": "python t.py FILL_IN_EPOCHS"})
    notes = plan_report(make_plan(made)).notes
    place = f"{tmp_path}/t.yaml:9: train.command"
    assert f"{place}: FILL_IN_EPOCHS is still to be filled in: `up` refuses it" in notes


@pytest.mark.parametrize(
    ("count", "words"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_499, "999 kB"), (999_501, "1.0 MB")),
        *((14_400_000, "14.4 MB"), (3_140_000_000, "3.1 GB"), (5 * 10**12, "5.0 TB")),
    ],
)
def test_sizes_read_as_on_a_disk(count: int, words: str) -> None:
    assert size_text(count) == words
