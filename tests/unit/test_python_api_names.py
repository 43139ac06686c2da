"""What `import cloudtrain` offers is kept: names, signatures, fields."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.core.run_record import Run

KEPT = Path(__file__).with_name("python_api.txt")
PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"
FUNCTIONS = ("load", "plan", "check", "up", "train", "run", "status", "logs", "fetch", "down")


def signature(name: str) -> str:
    return f"{name}{inspect.signature(getattr(cloudtrain, name))}".replace("'", "")


def described() -> list[str]:
    """A line for each exported function and field."""
    lines = []
    for name in cloudtrain.__all__:
        value = getattr(cloudtrain, name)
        if inspect.isfunction(value):
            lines.append(signature(name))
        elif dataclasses.is_dataclass(value):
            fields = sorted(dataclasses.fields(value), key=lambda field: field.name)
            lines += [f"{name}.{field.name}: {field.type}" for field in fields]
        else:
            lines.append(name)
    return lines


def test_every_name_that_a_module_exports_exists() -> None:
    package = Path(cloudtrain.__file__).parent
    lists = [path for path in package.glob("**/*.py") if "\n__all__ = " in path.read_text()]
    assert lists
    for path in lists:
        parts = path.relative_to(package.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        assert [name for name in module.__all__ if not hasattr(module, name)] == [], path


def test_exported_names_and_their_signatures_are_those_on_file() -> None:
    """A further field or argument with a default is added to the file; nothing is taken out."""
    kept = KEPT.read_text().splitlines()
    assert sorted({*described()} - {*kept}) == [], "add it to tests/unit/python_api.txt"
    assert described() == kept


def test_every_function_of_the_contract_is_there_and_documented() -> None:
    joined = re.sub(r"\(\s+|,\s+(?=\))", lambda found: found[0].strip(" \n,"), PAGE.read_text())
    joined = re.sub(r"\s+", " ", joined)
    for name in FUNCTIONS:
        assert inspect.getdoc(getattr(cloudtrain, name))
        assert signature(name) in joined, f"docs/python-api.md lacks: {signature(name)}"


def test_no_submodule_hides_a_function() -> None:
    modules = {module.name for module in pkgutil.iter_modules(cloudtrain.__path__)}
    assert not modules & set(cloudtrain.__all__)


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = cloudtrain.trian
    assert set(FUNCTIONS) <= set(dir(cloudtrain))


def test_a_run_shows_nothing_of_its_command_as_markup() -> None:
    run = Run(id="r", cluster="c", command="a <b> & c", tasks=(), state="running", created=0.0)
    assert "<td>a &lt;b&gt; &amp; c</td>" in run._repr_html_()
    assert "<tr><th>started</th><td>1970-01-01 00:00:00 UTC</td></tr>" in run._repr_html_()
