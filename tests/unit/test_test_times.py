"""`make test-times`: what a process is for, how its time is added up, and the tables."""

from __future__ import annotations

import pytest

from tests.support.times import CAUSES, cause_of
from tools import test_times
from tools.test_times import TICK, Seen, Watch, ours, page


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("/v/bin/python -m pytest -q tests", "the tests' own processes"),
        (
            "/v/bin/python -u -c import sys;exec(eval(sys.stdin.readline()))",
            "the tests' own processes",
        ),
        ("/v/bin/python -m moto.server -H 127.0.0.1", "stores"),
        ("/v/bin/node /c/azurite@3.35.0/main.js --blobHost 127.0.0.1", "stores"),
        ("/v/bin/python -m tests.standins aws --json", "clouds' stand-ins, package indexes"),
        ("/v/bin/python -m cloudtrain up x.yaml", "cloudtrain"),
        ("/v/bin/python -m tests.support.commands 19", "cloudtrain"),
        ("/c/venvs/tf2.21-cpu/bin/python train.py", "TensorFlow and other tasks"),
        ("python3 rank.py --output x", "TensorFlow and other tasks"),
        ("/c/venvs/tf2.21-cpu/bin/python -m pip install x", "pip, uv, venv"),
        ("/usr/bin/python3 -m venv --without-pip x", "pip, uv, venv"),
        ("/usr/sbin/sshd -D -e -f x", "SSH"),
        ("sshd: cloudtrain [priv]", "SSH"),
        ("unshare --mount --pid /bin/sh -c x", "nodes: boot"),
        ('/usr/bin/python3 -I -S -c """Samples', "nodes: agents, watchers"),
        ("/bin/sh -c # Starts, watches and ends tasks", "nodes: agents, watchers"),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus -quiet", "compilers"),
        ("/v/bin/python /v/bin/mypy ", "ruff, mypy"),
        ("git -C x status", "git"),
        ("/usr/bin/python3 -c pass", "other Python"),
        ("tar --create", "shells and other programs"),
    ],
)
def test_a_process_is_known_by_its_command_line(words: str, cause: str) -> None:
    assert cause in CAUSES
    assert cause_of(words) == cause


def seen(parent: int, own: int, ended: int = 0, cause: str = "git") -> Seen:
    return Seen(parent, own, ended, cause)


def test_what_a_process_uses_counts_once_and_for_its_cause() -> None:
    watch = Watch()
    watch.look({10: seen(1, 5, cause="cloudtrain")})
    watch.look({10: seen(1, 8, cause="cloudtrain"), 11: seen(10, 30)})
    watch.look({10: seen(1, 8, cause="cloudtrain"), 11: seen(10, 50)})
    assert watch.ticks == {"cloudtrain": 8, "git": 50}
    assert watch.processes == {"cloudtrain": 1, "git": 1}
    watch.look({10: seen(1, 9, 54, cause="cloudtrain")})
    assert watch.ticks == {"cloudtrain": 9, "git": 54}, "the last 4 after it was seen"
    watch.look({10: seen(1, 9, 61, cause="cloudtrain")})
    assert watch.ticks == {"cloudtrain": 16, "git": 54}, "children that were never seen"


def test_what_grandchildren_used_is_not_counted_again_when_their_parents_end() -> None:
    watch = Watch()
    watch.look({10: seen(1, 0), 11: seen(10, 2), 12: seen(11, 7)})
    watch.look({10: seen(1, 0, 0), 11: seen(10, 2, 7)})
    watch.look({10: seen(1, 0, 9)})
    watch.look({10: seen(1, 0, 9), 11: seen(10, 1), 12: seen(11, 1)})
    watch.look({10: seen(1, 0, 11)})
    assert watch.ticks == {"git": 11}


def test_processes_of_others_do_not_count() -> None:
    found = {
        11: seen(10, 1),  # of the command
        12: seen(11, 1),
        13: seen(1, 1),  # its parent has ended
        21: seen(20, 1),  # of another shell
        22: seen(21, 1),
    }
    assert list(ours(found, 10)) == [11, 12, 13]


def test_the_tables_have_every_cause_and_the_dearest_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_times, "DEAREST", 2)
    watch = Watch()
    watch.ticks["git"], watch.processes["git"] = 7 * TICK, 3
    tests = [
        {
            "test": f"test_it.py::test[{wall}|]",
            "wall": float(wall),
            "own": 1.0,
            "children": 0.5,
            "started": {"git": 2},
            "spent": {"sleep": [4, 1.5], "stores": [1, 0.9]},
        }
        for wall in (2, 30, 4)
    ]
    told = page(tests, watch, "3 tests in 20 s, commit b2", busy=30.0, idle=10.0)
    assert "`make test-times`: 3 tests in 20 s, commit b2, " in told
    assert "busy for 30 s and idle for 10 s (25 %)." in told
    assert "| git | 7 | 3 | 6 |\n" in told
    assert "| not seen, or others' | 23 | | |\n" in told
    assert (
        "Tests took 36 s one after the other, in which their own processes computed for 3 s."
        in told
    )
    assert "| sleep | 12 | 4 |\n" in told
    assert "| stores | 3 | 3 |\n" in told
    assert told.endswith(
        "|---|---|---|---|---|---|\n"
        "| 30.0 | 1.0 | 0.5 | 1.5 | 2 | test_it.py::test[30\\|] |\n"
        "| 4.0 | 1.0 | 0.5 | 1.5 | 2 | test_it.py::test[4\\|] |\n"
    )
