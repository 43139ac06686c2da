"""What is published about the file is true: schema, templates, the demo, docs/config.md."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import jsonschema
import pytest
import yaml

from cloudtrain.commands.init import SCHEMA, cluster_name, init, providers
from cloudtrain.config import load
from cloudtrain.config.candidates import LISTS
from cloudtrain.config.section import Section
from cloudtrain.config.sections import CandidateNodes, ConfigFile
from cloudtrain.core import model
from cloudtrain.core.errors import UsageError
from tools.config_schema import meanings, schema

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "config.md"
EXAMPLE = ROOT / "docs" / "most-fields.yaml"
EXAMPLES = sorted((ROOT / "configs").rglob("*.yaml"))
ENVIRON = {"HOME": "/home/me"}


def generate(tool: str = "generate_docs") -> ModuleType:
    spec = importlib.util.spec_from_file_location(tool, ROOT / "tools" / f"{tool}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def validator() -> Any:
    return jsonschema.Draft202012Validator(schema())


def test_the_schema_in_the_repository_is_current() -> None:
    text = (ROOT / "configs" / "schema.json").read_text(encoding="utf-8")
    assert text == generate().schema_text(), "run: python tools/generate_docs.py"
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_the_tables_of_the_page_are_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == generate().page(text), "run: python tools/generate_docs.py"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_loads_and_fits_the_schema(path: Path) -> None:
    assert load(path, ENVIRON).provider
    validator().validate(yaml.safe_load(path.read_text()))
    reference = re.match(r"# yaml-language-server: \$schema=(.*)\n", path.read_text())
    assert reference
    assert (path.parent / reference[1]).resolve() == ROOT / "configs" / "schema.json"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_what_a_template_holds_in_comments_is_right_too(path: Path, tmp_path: Path) -> None:
    """Fields that are commented out load once the comment sign goes."""
    text = re.sub(r"(?m)^(\s*)# (?=( *[a-zA-Z_]+: ))", r"\1", path.read_text())
    text = re.sub(r"(?m)^(Every field|To rehearse|The same file).*\n", "", text)
    text = text.replace("  git: https", "  # git: https").replace("  ref: main", "  # ref: main")
    changed = tmp_path / "changed.yaml"
    changed.write_text(text)
    assert load(changed, ENVIRON)


def test_the_demo_runs_the_example_on_a_chief_and_two_workers() -> None:
    config = load(ROOT / "configs" / "local.yaml", ENVIRON)
    assert (config.provider, config.strategy) == ("local", "multi_worker_mirrored")
    assert {role: group.count for role, group in config.nodes.items()} == {"chief": 1, "worker": 2}
    assert (config.folder / str(config.code.path)).resolve() == ROOT / "examples"
    assert (ROOT / "examples" / config.train.command.split()[1]).is_file()
    assert config.artifacts.store == "file:///home/me/cloudtrain-artifacts/digits"


def test_the_big_example_loads_and_has_most_fields(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    (tmp_path / "page.yaml").write_text(text)
    assert load(tmp_path / "page.yaml", {}).name == "mnist"
    tree = yaml.safe_load(text)
    validator().validate(tree)
    instead = {"hosts", "resource_group", "shared", *LISTS}
    assert set(ConfigFile.names()) - set(tree) == instead
    assert set(model.Train.__annotations__) - NOT_KEYS == set(tree["train"])


def model_classes() -> list[type]:
    """ClusterConfig and every dataclass that one of its fields holds."""
    found: list[type] = []
    for model_class in [model.ClusterConfig, model.NodeGroup, model.Host, model.DataSource]:
        found += [model_class]
        found += [hint for hint in get_type_hints(model_class).values() if is_dataclass(hint)]  # type: ignore[misc]
    return [each for each in dict.fromkeys(found) if each is not model.Provisioning]


SHORT = {"spot"}
"""Keys of the file that are short for another one."""
NOT_KEYS = {"commands", "overrides", "defaults", "written", "env_file"}
NOT_KEYS |= {"candidates", "candidate_order", "mark"}
"""Fields of the model that another key of the file fills, the command line, the defaults, or
`run --away` for its desk."""


@pytest.mark.parametrize("model_class", model_classes(), ids=lambda each: each.__name__)
def test_every_field_of_the_model_is_in_the_file_and_described(model_class: type) -> None:
    sections = [section for section in Section.__subclasses__() if section is not CandidateNodes]
    [section] = [section for section in sections if section.of is model_class]
    names = {item.name for item in fields(model_class)}
    in_file = set(section.names()) - {"source", *LISTS, *SHORT}
    where = f"{section.__name__}, {section.__module__.replace('.', '/')}.py: a row for each field"
    assert names - {"source", *NOT_KEYS} == in_file, where
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    said = meanings(section)
    for name, field in section.by_key().items():
        assert said[field.name]
        assert f"`{name}`" in page
        assert f": {said[field.name]}" in page


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("provider: local\nstrategy: mirrored", True),
        ("provider: local\nstrategy: ${S}", True),
        ("provider: local\nstrategy: mirrored\nsetup:\ntrain: {command: x, port: '${P}'}", True),
        ("provider: local\nstrategy: mirrored\nsetup: {tensorflow: 2.21, keras: 3}", True),
        ("provider: local\nstrategy: mirrored\nnodes: {chief: , worker: false}", True),
        ("provider: local\nstrategy: mirrored\nlimits: {idle: off, max_lifetime: 12h}", True),
        ("provider: local\nstrategy: mirrored\nhosts: cluster.ini", True),
        ("provider: local", False),
        ("provider: gcp\nstrategy: mirrored", False),
        ("provider: local\nstrategy: mirored", False),
        ("provider: local\nstrategy: mirrored\nnodes: {chief: {cuont: 1}}", False),
        ("provider: local\nstrategy: mirrored\ntrain: {command: x, port: 80}", False),
        ("provider: local\nstrategy: mirrored\nsecrets: {A: hunter2}", False),
    ],
)
def test_an_editor_with_the_schema_agrees_with_us(text: str, good: bool) -> None:
    assert validator().is_valid(yaml.safe_load(text)) is good


# ── cloudtrain init ──────────────────────────────────────────────────────────


def test_init_has_a_template_for_every_provider() -> None:
    assert set(providers()) == {"gcp", "aws", "azure", "local", "hosts"}


@pytest.mark.parametrize("provider", ["gcp", "aws", "azure", "local", "hosts"])
def test_init_writes_a_config_that_loads_with_its_schema_beside_it(
    provider: str, tmp_path: Path
) -> None:
    path = init(provider, tmp_path / "my job.yaml")
    assert path == tmp_path / "my job.yaml"
    config = load(path, ENVIRON)
    assert config.name.startswith(cluster_name(tmp_path)[:-4])
    assert config.provider == provider
    assert path.read_text().startswith(f"# yaml-language-server: $schema={SCHEMA}\n")
    written = json.loads((tmp_path / SCHEMA).read_text())
    assert written == schema(), "run: python tools/generate_docs.py"


def test_init_names_the_file_for_a_folder_and_never_overwrites(tmp_path: Path) -> None:
    path = init("local", tmp_path)
    assert path == tmp_path / "local.yaml"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"local\.yaml already exists"):
        init("local", tmp_path)
    assert path.read_text() == "mine"


def test_init_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown provider 'gpc'"):
        init("gpc", tmp_path)
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
        init("local", tmp_path / "no" / "x.yaml")
