"""Credentials in every state that a user's machine may have them in, in every command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cloudtrain.core.errors import CredentialsError
from tests.standins.cloud import Cloud
from tests.support.aws_credentials import AwsDesk
from tests.support.azure_credentials import AzureDesk
from tests.support.credential_desk import Desk, prepare, record, typed
from tests.support.gcp_credentials import GcpDesk
from tests.support.lanes import Cases

DESKS: Mapping[str, type[Desk]] = {"aws": AwsDesk, "azure": AzureDesk, "gcp": GcpDesk}
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "check": ("check", "FILE"),
    "up": ("up", "FILE", "--yes"),
    "down": ("down", "job", "--yes"),
    "status": ("status", "job"),
    "ls --cloud": ("ls", "--cloud"),
    "gc": ("gc", "--yes"),
    "fetch": ("fetch", "stored"),
    "a store": ("check", "STORED"),
    "data": ("check", "WITH DATA"),
}
OF_THE_STORE = ("fetch", "a store", "data")


@pytest.fixture(scope="module")
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with DESKS[request.param].account() as cloud:
        yield cloud


@pytest.fixture
def desk(tmp_path: Path, own_home: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Desk:
    prepare(monkeypatch, tmp_path, cloud.name)
    return DESKS[cloud.name](tmp_path, cloud, monkeypatch)


@pytest.mark.parametrize(
    ("cloud", "name"),
    [(cloud, name) for cloud, desk in DESKS.items() for name in desk.STATES],
    indirect=["cloud"],
)
def test_every_command_names_the_command_that_cures_it(name: str, desk: Desk, cases: Cases) -> None:
    state = desk.STATES[name]
    cure = state.cure.format(**desk.be_in(state))
    files = {
        "FILE": desk.file(),
        "STORED": desk.file("stored.yaml", artifacts={"store": f"{desk.bucket}/x"}),
        "WITH DATA": desk.file("fed.yaml", data={"digits": f"{desk.bucket}/digits"}),
    }
    for file in files.values():
        record(file)
    known = {c: w for c, w in COMMANDS.items() if not (state.refuses and c in OF_THE_STORE)}
    for command in cases.of(known, desk.sample, always=("down",)):
        done = typed(*(files.get(word, word) for word in known[command]))
        text = " ".join(done.output.split())
        assert "internal:" not in text, (command, text)
        assert done.exit_code == CredentialsError.exit_code, (command, text)
        assert cure in text, (command, text)
        assert re.search(state.says, text), (command, text)
        assert not any(secret in text for secret in desk.SECRETS)
