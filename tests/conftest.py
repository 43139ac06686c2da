"""Fixtures that more than one file uses."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cloudtrain.catalog import table
from cloudtrain.core import retry
from tests.support import environments, forked, lanes, prepared
from tests.support import project as projects
from tests.support.forked import pytest_runtestloop
from tests.support.lanes import (
    cases,
    pytest_collection_modifyitems,
    pytest_configure_node,
    pytest_report_collectionfinish,
    pytest_report_header,
    pytest_terminal_summary,
)

__all__ = [
    "cases",
    "pytest_collection_modifyitems",
    "pytest_configure_node",
    "pytest_report_collectionfinish",
    "pytest_report_header",
    "pytest_runtestloop",
    "pytest_terminal_summary",
]

# Whoever starts the tests may ignore signals, as `nohup` and many CI runners do, and prefer other
# programs: a `python3` that is a script of pyenv takes five times as long to start.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
    signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
os.environ["PATH"] = f"{sys.base_prefix}/bin:{environments.uv_folder()}:{os.environ['PATH']}"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile all that it imports
sys.dont_write_bytecode = False
gc.set_threshold(50_000)  # sockets in circles are closed by it

# All stand-ins, stores and machines of the tests are here: no config needs trust for that.
os.environ["CLOUDTRAIN_TRUST_ENDPOINT"] = "localhost"

# This user's own defaults are for this user's clusters.
os.environ["CLOUDTRAIN_CONFIG"] = os.devnull

retry.OUTAGE = 0.0  # no test waits half an hour, unless it says so (tests/support/commands)

# No test is judged by its time: a busy machine is slow to draw and to run an example.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("whole", _UNTIMED)
settings.register_profile("dev", _UNTIMED, max_examples=4)  # of `make quick`
settings.register_profile("test", _UNTIMED, max_examples=30)  # of `make test`
settings.load_profile("whole")


def pytest_addoption(parser: pytest.Parser) -> None:
    lanes.add_options(parser)
    forked.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    lanes.pytest_configure(config)
    forked.pytest_configure(config)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported and collected by now stays to the end


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest collects garbage five times at its end, a second for tests/unit


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skipped test showed nothing: in CI, which has all that the tests need, it failed. One that
    needs an old Python says so by its mark."""
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if skipped and os.environ.get("CI") == "true" and "other_python" not in item.keywords:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}, and CI must have what the tests need"
    return report


GIVEN = os.environ.get("CLOUDTRAIN_CACHE")
_begun = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    global _begun
    _begun += 1


@pytest.fixture(autouse=True, scope="session")
def own_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What stand-ins say of machines is neither kept in this user's cache nor seen by other tests.
    A test with a cache of its own has it there."""
    folder, real = tmp_path_factory.getbasetemp(), table.learned_path

    def path(provider: str) -> Path:
        own = os.environ.get("CLOUDTRAIN_CACHE") not in (None, GIVEN)
        return real(provider) if own else folder / f"machines{_begun}" / f"{provider}.csv"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "learned_path", path)
        yield


@pytest.fixture(autouse=True, scope="module")
def no_variable_stays() -> Iterator[None]:
    """What a test sets and leaves set is not seen by the tests of other files. moto's variables are
    set as the stand-in of AWS is imported, and stay."""
    before = dict(os.environ)
    yield
    moto = {name: value for name, value in os.environ.items() if name.startswith("MOTO_")}
    os.environ.clear()
    os.environ.update(before | moto)


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the records, in this process."""
    home = tmp_path / "home"
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(home))
    return home


@pytest.fixture
def project(tmp_path: Path) -> Iterator[projects.Project]:
    yield from projects.project(tmp_path / "user's project")


@pytest.fixture(scope="session")
def tensorflow_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of tests/support/prepared.py, made once on this machine."""
    return prepared.tensorflow_python(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """The endpoint of a blob service; it takes seconds to start."""
    from tests.standins import stores

    with stores.az() as store:
        yield store.endpoint


@pytest.fixture(scope="session")
def azurite_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The endpoint of one over TLS, and the certificate by which it is known."""
    from tests.standins import stores
    from tests.standins.serve import certificate

    tls = certificate(tmp_path_factory.mktemp("tls"))
    with stores.az(tls) as store:
        yield store.endpoint, tls[0]
