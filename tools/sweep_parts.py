"""Parts of tools/sweeps.py: tests and programs by subject."""

from __future__ import annotations

from dataclasses import dataclass

from bench.rehearsal import SCRIPTS


@dataclass(frozen=True)
class Part:
    name: str
    line: str
    files: str = ""
    """Patterns of test files, each of which belongs to the first part that has one for it."""
    programs: tuple[str, ...] = ()
    """Words for this interpreter, the last one the file of results. `{seed}`: each commit has its
    own. `{share}`: several processes share the trials, and the file has a line for each of them.
    """


CLOUDS = ("gcp", "aws", "azure")
AWAY = "bench/away.py {{share}} --cloud {0} --minutes {{minutes}} --rows {{folder}}/away-{0}.jsonl"
MARKET = "bench/spot_market.py --cloud {0} --output {{folder}}/spot_market-{0}.md"
STRANGER = "bench/rehearsal.py --only {0} --rows {{folder}}/rehearsal-{0}.jsonl"
FAULTS = "bench/faults.py --runs 1 --where {} --seed {{seed}}{} {} --rows {{folder}}/faults.jsonl"
PLACES = ("local", "hosts", *CLOUDS)
PARTS = (
    Part("cloud-crash", "killed at each call to a cloud", "test_cloud_*crash.py"),
    Part(
        "time",
        "at each call another machine's command, a clock that is set, a cloud that is away for a "
        "minute; ends that are refused, a store that is away",
        "test_cloud_meanwhile.py test_lid.py test_outage.py test_ends_contract.py "
        "test_cloud_endings.py",
    ),
    Part("cloud-faults", "each call to a cloud answered wrongly", "test_cloud_*.py"),
    Part("local-crash", "killed at each step on local nodes", "test_local_*.py"),
    Part("land-crash", "killed at each step of a landing, or its store away", "test_land*.py"),
    Part("environments", "environments that travel, cut at each step", "test_environment*.py"),
    Part(
        "properties",
        "the properties of tests/unit, by 100 examples each",
        programs=("-m pytest -q --hypothesis-profile whole tests/unit",),
    ),
    Part("horovod", "Horovod, really built", "test_*horovod*.py"),
    Part("gpu-wheels", "real CUDA wheels with a fake driver", "test_gpu_wheels.py"),
    Part(
        "tensorflow",
        "trainings with a real TensorFlow",
        "test_*tensorflow*.py test_training.py test_examples.py test_estimator.py",
    ),
    Part(
        "pythons",
        "what nodes run, on each Python",
        "test_layer.py test_ship.py test_task_packages.py",
    ),
    Part(
        "any-of",
        "`up` over three clouds, killed in every state, and each call going wrong",
        "test_any_of*.py",
        ("bench/any_of.py {share} --rows {folder}/any_of.jsonl",),
    ),
    Part(
        "away",
        "`run --away`, its client and its controller killed at their calls, for a time (root)",
        "test_away*.py",
        tuple(AWAY.format(cloud) for cloud in CLOUDS),
    ),
    Part(
        "faults",
        "runs with one or two faults at random moments (root)",
        "test_random_faults.py test_rehearsal_faults.py",
        tuple(
            FAULTS.format(place, number, pairs)
            for place in PLACES
            for pairs in ("", "--pairs")
            for number in range(5)
        ),
    ),
    Part(
        "spot-market",
        "a run whose spot nodes are taken, one a minute (root)",
        programs=tuple(MARKET.format(cloud) for cloud in CLOUDS),
    ),
    Part(
        "rehearsal",
        "other people's scripts with a real TensorFlow under faults",
        programs=tuple(STRANGER.format(script.name) for script in SCRIPTS),
    ),
    Part(
        "tensorflow-matrix",
        "each TensorFlow on each Python by each strategy, where docs/versions.md has no result",
        programs=("tools/tensorflow_matrix.py --results docs/versions.json",),
    ),
    Part("others", "every other test that tries each case", "*"),
)
