"""Fixtures that more than one file of these tests uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.botocore_models import models_are_read_once, no_session_stays
from tests.support.cloud_rig import Rig, Rigs
from tests.support.once import folder_of_run

__all__ = ["models_are_read_once", "no_session_stays"]


@pytest.fixture(scope="session")
def rigs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rigs]:
    folder, of_run = tmp_path_factory.mktemp("rigs"), folder_of_run(tmp_path_factory)
    with Rigs(folder, of_run, whole=request.config.option.sweep) as rigs:
        yield rigs


@pytest.fixture
def rig(request: pytest.FixtureRequest, rigs: Rigs) -> Rig:
    """Of the name that a test is parametrised with; its account is emptied by `begin_anew`."""
    return rigs.named(request.param)
