"""A field of the config is one row of its section: reader, schema, pages, defaults and comparison
of nodes follow."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cloudtrain.cluster import drift
from cloudtrain.cluster.plan import make_plan
from cloudtrain.config import additions, load, sections
from cloudtrain.config import fields as kinds
from cloudtrain.config.section import REPLACE, Fact, optional
from cloudtrain.core import model
from cloudtrain.core.errors import ConfigError
from tests.unit.test_config_page import generate
from tools.config_schema import schema

TEXT = "provider: gcp\nplacement: [us-central1]\nstrategy: mirrored\n"


@dataclass(frozen=True, kw_only=True)
class WideNetwork(model.Network):
    mtu: int | None = None


class WideSection(sections.NetworkSection):
    of = WideNetwork
    mtu: kinds.Gigabytes | None = optional(REPLACE, default="clouds", fact=Fact(form="mtu {}"))
    """MTU of the network."""


class ConfigFile(sections.ConfigFile):
    network: WideSection | None
    """Network."""


@pytest.fixture
def with_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The config with `network.mtu`: its row, its attribute in the model, and no other line."""
    monkeypatch.chdir(tmp_path)

    old = sections.ConfigFile
    for module in [
        module for name, module in sys.modules.items() if name.startswith(("cloudtrain", "tools"))
    ]:
        if getattr(module, "ConfigFile", None) is old:
            monkeypatch.setattr(module, "ConfigFile", ConfigFile)
    additions.fields.cache_clear()
    drift.compared.cache_clear()
    yield
    additions.fields.cache_clear()
    drift.compared.cache_clear()


def read(text: str, defaults: str = "") -> model.ClusterConfig:
    Path("c.yaml").write_text(TEXT + text)
    Path("d.yaml").write_text(defaults)
    return load(Path("c.yaml"), {}, defaults=Path("d.yaml"))


@pytest.mark.usefixtures("with_field")
def test_a_field_that_is_added_as_one_row_is_known_everywhere() -> None:
    config = read("network: {mtu: 1460}\n")
    assert config.network == WideNetwork(mtu=1460)
    with pytest.raises(ConfigError, match=r"c\.yaml:4: network\.mtu: must be a whole number"):
        read("network: {mtu: big}\n")

    assert read("", "network: {mtu: 1500}\n").defaults == {"network.mtu": "d.yaml:1"}

    fits = jsonschema.Draft202012Validator(schema()).is_valid
    base = {"provider": "gcp", "placement": ["us-central1"], "strategy": "mirrored"}
    assert [fits({**base, "network": {"mtu": each}}) for each in (1460, "big")] == [True, False]

    module = generate()
    pages = module.tables()
    assert "\n- `mtu` (1…65536): MTU of the network.\n" in pages
    assert "`network.mtu`" in pages.partition("**replace**")[2].partition("**down first**")[0]

    plan = make_plan(config)
    facts = drift.creation_facts_of(config, plan.nodes[0])
    made = {plan.nodes[0].name: {**facts, "mtu": 1500}}
    (change,) = drift.drift_by_record(plan, made).changes
    assert (change.field, change.there, change.wanted) == ("network.mtu", "mtu 1500", "mtu 1460")
