"""What is found in a config before any node exists, from the config alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.catalog.region_names import invalid_region
from cloudtrain.checks.check import refuse_missing_script
from cloudtrain.checks.commands import LONGEST
from cloudtrain.checks.findings import command, found_ahead
from cloudtrain.checks.notes import notes
from cloudtrain.checks.script_code import missing_script
from cloudtrain.cli.plan import as_document
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import plan_report
from cloudtrain.config import load
from cloudtrain.core.errors import CloudtrainError, ConfigError, PreflightError
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.protocols import Finding
from tests.support.offline_checks_parts import written
from tests.support.releases import NEWEST, NEXT


def refused(config: ClusterConfig) -> str:
    with pytest.raises(CloudtrainError) as caught:
        plan_report(make_plan(config))
    return str(caught.value)


# ── setup ────────────────────────────────────────────────────────────────────


def setup_finding(config: ClusterConfig) -> Finding:
    return next(each for each in found_ahead(config) if each.what == "setup")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("1.16", f"unknown TensorFlow 1.16; 1.13 to 1.15 and 2.0 to {NEWEST} are known"),
        ("1.4", "unknown TensorFlow 1.4;"),
    ],
)
def test_a_tensorflow_that_nobody_knows_is_refused_with_its_line(
    tmp_path: Path, version: str, words: str
) -> None:
    config = written(tmp_path, setup={"tensorflow": version})
    assert words in refused(config)
    assert "t.yaml:" in refused(config)
    assert "setup.tensorflow: unknown" in refused(config)
    finding = setup_finding(config)
    assert not finding.ok
    assert words in finding.text


@pytest.mark.parametrize("version", ["1.13", "1.15", "2.0", "2.1", "2.13", NEWEST, f"{NEWEST}.0"])
def test_a_known_one_is_not(tmp_path: Path, version: str) -> None:
    assert setup_finding(written(tmp_path, setup={"tensorflow": version})).ok


@pytest.mark.parametrize("version", [NEXT, "2.99.1", "3.0"])
def test_a_newer_one_is_left_to_the_package_index_and_noted(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has it: tests/integration/test_network.py has one that lacks it."""
    monkeypatch.setattr("cloudtrain.checks.setup.missing_release", lambda version: None)
    config = written(tmp_path, setup={"tensorflow": version})
    finding = setup_finding(config)
    assert finding.ok
    words = f"TensorFlow {version} is newer than the table of "
    assert words in finding.text
    assert any(words in note for note in plan_report(make_plan(config)).notes)


def test_requirements_are_read_with_what_they_include(tmp_path: Path) -> None:
    config = written(tmp_path, setup={"requirements": "reqs.txt"})
    assert "setup.requirements" in refused(config)
    assert not setup_finding(config).ok
    (tmp_path / "reqs.txt").write_text("numpy\n-r more/deeper.txt\n")
    assert "deeper.txt cannot be read: No such file" in refused(config)
    (tmp_path / "more").mkdir()
    (tmp_path / "more/deeper.txt").write_text("pandas\n")
    assert as_document(plan_report(make_plan(config)))["name"] == "t"
    assert setup_finding(config).text == "none and reqs.txt"


def test_a_horovod_that_cannot_be_built_is_refused_by_plan_too(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        strategy="horovod",
        nodes={"worker": {"count": 2}},
        setup={"tensorflow": "2.21"},
    )
    assert 'builds with TensorFlow 2.13 to 2.18, not with 2.21: set `tensorflow: "2.15' in refused(
        config
    )


def test_keras_3_over_several_nodes_is_warned_of(tmp_path: Path) -> None:
    several = written(tmp_path, setup={"tensorflow": "2.21", "keras": 3})
    assert "keras: 3: model.fit of Keras 3 does not work" in "".join(notes(several))
    alone = written(tmp_path, setup={"tensorflow": "2.21", "keras": 3}, nodes={"chief": {}})
    assert not [note for note in notes(alone) if note.startswith("keras")]


# ── evaluator, secrets ───────────────────────────────────────────────────────


def test_a_secret_that_is_not_set_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_HERE", raising=False)
    config = written(tmp_path, train={"command": "true"}, secrets={"TOKEN": "${NOT_HERE}"})
    assert notes(config) == ("secrets.TOKEN: the environment variable NOT_HERE is not set",)


# ── lengths ──────────────────────────────────────────────────────────────────


def test_a_line_or_a_variable_that_no_node_can_start_with_is_refused(tmp_path: Path) -> None:
    long = "x" * (LONGEST + 1)
    for train, field in (
        ({"command": f"echo {long}"}, "train.command"),
        ({"command": "true", "env": {"BIG": long}}, "train.env.BIG"),
    ):
        config = written(tmp_path, train=train)
        told = refused(config)
        assert f"{field}: is 130," in told
        assert "one argument or variable takes at most 130,048" in told
        (finding,) = command(make_plan(config))
        assert not finding.ok
    fitting = written(tmp_path, train={"command": "true", "env": {"BIG": "x" * 110_000}})
    assert as_document(plan_report(make_plan(fitting)))["name"] == "t"


# ── places ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("provider", "place", "meant"),
    [
        ("gcp", "us-centrall-a", "us-central1"),
        ("gcp", "us-esat4-c", "us-east4-c"),
        ("gcp", "us-east4c", "us-east4"),
        ("aws", "us-eats-1", "us-east-1"),
        ("aws", "us-east-1-a", "us-east-1"),
        ("azure", "westeurop", "westeurope"),
        ("azure", "eatus", "eastus"),
    ],
)
def test_a_misspelt_place_is_refused_with_the_one_that_was_meant(
    provider: str, place: str, meant: str
) -> None:
    assert invalid_region(provider, place) == (
        f"{provider} has no region or zone {place!r}: did you mean {meant!r}?"
    )


@pytest.mark.parametrize(
    ("provider", "place", "said"),
    [
        ("gcp", "us-central1-z", "no zone 'us-central1-z': 'us-central1' tries each of the region"),
        ("gcp", "us-east1-a", "no zone 'us-east1-a': 'us-east1' tries each of the region"),
        ("aws", "eu-west-1k", "no zone 'eu-west-1k': 'eu-west-1' tries each of the region"),
        ("azure", "eastus-7", "no zone 'eastus-7': 'eastus' tries each of the region"),
        ("gcp", "us-east-1a", "region or zone 'us-east-1a', which is one of aws: did you mean"),
        ("aws", "us-central1-b", "region or zone 'us-central1-b', which is one of gcp"),
        ("azure", "us-east-1", "region or zone 'us-east-1', which is one of aws"),
    ],
)
def test_a_zone_that_no_region_has_and_another_clouds_place_are_refused(
    provider: str, place: str, said: str
) -> None:
    assert said in str(invalid_region(provider, place))


@pytest.mark.parametrize(
    ("provider", "place"),
    [
        *(("gcp", place) for place in ("us-central1-ai1a", "europe-west12", "africa-south1-b")),
        *(("aws", place) for place in ("us-east-1a", "ap-southeast-9", "us-west-2-lax-1a")),
        *(("azure", place) for place in ("eastus-1", "newzealandnorth", "centralus2")),
        ("local", "nowhere"),
    ],
)
def test_a_place_that_the_table_does_not_have_may_be_new(provider: str, place: str) -> None:
    assert invalid_region(provider, place) is None


def test_plan_refuses_it_with_its_line_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(
        "name: t\nprovider: gcp\nproject: p\nstrategy: one_device\n"
        "placement: [us-east4-c, us-centrall]\ntrain: {command: true}\n"
    )
    with pytest.raises(ConfigError, match=r"g\.yaml:5: placement: gcp has no region or zone"):
        plan_report(make_plan(load(path)))
    assert as_document(plan_report(make_plan(load(path)), ignore=("placement",)))["name"] == "t"


# ── the script ───────────────────────────────────────────────────────────────


def coded(folder: Path, line: str, **train: str) -> ClusterConfig:
    for name in ("train.py", "ignored.py", "sub/other.py", "pkg/__init__.py", "pkg/task.py"):
        (folder / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "code" / name).touch()
    (folder / "code/.gitignore").write_text("ignored.py\n")
    return written(folder, code={"path": "code"}, train={"command": line, **train})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python trian.py --x 1", "train.command: trian.py does not exist in"),
        ("python trian.py", "did you mean 'train.py'?"),
        ("BATCH=4 python3.11 -u nothing.py", "nothing.py does not exist in"),
        ("python ignored.py", "ignored.py is not delivered: left out (.gitignore:1 `ignored.py`)"),
        ("python a.ipynb", "is a notebook, which Python cannot run: name the script that"),
        ("python other.py", "did you mean 'sub/other.py'?"),
        ("python -m pkg.tsak", "did you mean 'pkg.task'?"),
        ("python -m pkg", "pkg has no __main__.py"),
    ],
)
def test_a_script_that_is_not_delivered_is_found(tmp_path: Path, line: str, words: str) -> None:
    config = coded(tmp_path, line)
    assert words in (missing_script(config) or "")
    assert any(words in note for note in as_document(plan_report(make_plan(config)))["notes"])
    with pytest.raises(PreflightError):
        refuse_missing_script(config)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "python ./train.py --x",
        "python sub/../train.py",
        "python -m pkg.task",
        "python -m torch.distributed.run train.py",
        "python /opt/train.py",
        "python {role}.py",
        "python $SCRIPT.py",
        "cp train.py b.py && python b.py",
        "PYTHONPATH=x python -m pkg.other",
        "python -c 'print(1)'",
        "bash nothing.sh",
        "python 'unclosed",
    ],
)
def test_nothing_is_said_of_what_is_there_or_not_known(tmp_path: Path, line: str) -> None:
    assert missing_script(coded(tmp_path, line)) is None


def test_train_dir_is_where_it_starts(tmp_path: Path) -> None:
    assert missing_script(coded(tmp_path, "python other.py", dir="sub")) is None
    missing = missing_script(coded(tmp_path, "python othr.py", dir="sub"))
    assert "train.dir sub: did you mean 'other.py'?" in (missing or "")


def test_without_any_code_it_cannot_be_there(tmp_path: Path) -> None:
    missing = missing_script(written(tmp_path, train={"command": "python train.py"}))
    assert "there is no `code:`" in (missing or "")


# ── ps ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("provider", "checkpoints", "noted"),
    [("gcp", "ckpt", True), ("local", "ckpt", True), ("gcp", None, False)],
)
def test_a_ps_that_saves_on_its_own_machine_is_noted_with_the_way_out(
    tmp_path: Path, provider: str, checkpoints: str | None, noted: bool
) -> None:
    config = written(
        tmp_path,
        provider=provider,
        strategy="parameter_server",
        nodes={"chief": {}, "worker": {"count": 1}, "ps": {}},
        train={"command": "true", **({"checkpoints": checkpoints} if checkpoints else {})},
        **({"placement": ["us-central1"], "project": "p"} if provider == "gcp" else {}),
    )
    found = [note for note in notes(config) if "each ps writes its part" in note]
    assert len(found) == noted
    assert all("experimental_io_device='/job:chief/task:0/device:CPU:0'" in each for each in found)
