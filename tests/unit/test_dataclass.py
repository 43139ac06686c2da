"""Our `@dataclass`: the standard library's in all that can be seen, from the first use on."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

import cloudtrain
from cloudtrain.core.dataclass import dataclass, field

PACKAGE = Path(cloudtrain.__path__[0])
T = TypeVar("T")


def declared(decorator: Any) -> dict[str, Any]:
    """Classes of every form, none of them used yet."""

    @decorator(frozen=True, kw_only=True)
    class Frozen:
        """A docstring."""

        name: str
        sizes: list[int] = field(default_factory=list)
        note: str = field(default="", compare=False, metadata={"ge": 0})

    @decorator(frozen=True, kw_only=True, order=True)
    class Below(Frozen):
        more: int = 3

        def __post_init__(self) -> None:
            object.__setattr__(self, "name", self.name.upper())

    class Plain(Below):
        def __init__(self) -> None:
            super().__init__(name="plain")

    @decorator
    class Positional(Generic[T]):
        x: T
        y: int = 2

    @decorator(frozen=True, slots=True)
    class Slots:
        x: int

    @decorator(eq=False)
    class Fault(Exception):
        text: str

    return dict(locals())


def made(classes: dict[str, Any]) -> list[Any]:
    """An instance of each, those of subclasses first."""
    return [
        classes["Plain"](),
        classes["Below"](name="below", more=4),
        classes["Frozen"](name="a", sizes=[1]),
        classes["Positional"](1, y=3),
        classes["Slots"](1),
        classes["Fault"]("why"),
    ]


def seen(value: Any) -> list[Any]:
    """What can be seen of a value and of its class."""
    kind = type(value)
    params = kind.__dataclass_params__
    return [
        repr(value),
        [(item.name, item.kw_only, item.metadata) for item in dataclasses.fields(value)],
        repr(params),
        str(inspect.signature(kind)),
        (kind.__doc__ or "").partition("(")[0],
        kind.__match_args__,
        kind.__hash__ is None,
        kind.__eq__ is object.__eq__,
        value == copy.copy(value),
        dataclasses.asdict(value),
        [name for name in vars(kind) if name not in ("__new__", "__signature__")].sort(),
    ]


def test_a_value_is_as_one_of_the_standard_library() -> None:
    ours, theirs = (
        list(map(seen, made(declared(each)))) for each in (dataclass, dataclasses.dataclass)
    )
    assert ours == theirs


def test_values_are_equal_and_hashed_by_the_fields_that_count() -> None:
    ours, theirs = (declared(each) for each in (dataclass, dataclasses.dataclass))
    for kinds in (ours, theirs):
        frozen, positional = kinds["Frozen"], kinds["Positional"]
        a, b = frozen(name="a", note="x"), frozen(name="a", note="y")
        assert a == b
        assert (a != frozen(name="b"), a != "a", a != positional("a")) == (True, True, True)
        with pytest.raises(TypeError, match="unhashable"):
            hash(a)  # of its list
        with pytest.raises(TypeError, match="unhashable"):
            hash(positional(1))  # not frozen
        assert positional(1) == positional(1, 2)
        below = kinds["Below"](name="A", sizes=())
        assert hash(below) == hash(kinds["Below"](name="a", sizes=(), note="n"))
        assert below != frozen(name="A", sizes=())


def test_a_value_that_holds_itself_is_shown() -> None:
    @dataclass
    class Held:
        inside: list[object] = field(default_factory=list)

    value = Held()
    value.inside.append(value)
    assert repr(value).endswith("Held(inside=[...])")


@pytest.mark.parametrize("asked", [dataclasses.fields, dataclasses.is_dataclass, inspect.signature])
def test_a_class_of_which_there_is_no_instance_is_complete_for_who_asks(
    asked: Callable[[Any], Any],
) -> None:
    for name in ("Frozen", "Below", "Plain", "Positional"):
        ours, theirs = (declared(each)[name] for each in (dataclass, dataclasses.dataclass))
        assert str(asked(ours)) == str(asked(theirs))


@dataclass(frozen=True, kw_only=True)
class Pickled:
    x: int


def test_a_value_may_come_from_a_pickle_before_any_other() -> None:
    data = pickle.dumps(Pickled(x=1)).replace(b"Pickled", b"Unused1")
    unused = dataclass(frozen=True, kw_only=True)(
        type("Unused1", (), {"__annotations__": {"x": int}, "__module__": __name__})
    )
    globals()["Unused1"] = unused
    first, second = pickle.loads(data), pickle.loads(data)
    assert (first, repr(first), hash(first)) == (second, "Unused1(x=1)", hash(second))
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.x = 2


def test_a_fault_of_the_declaration_is_told_at_each_use() -> None:
    @dataclass
    class Wrong:
        x: int = 1
        y: str

    for _ in range(2):
        with pytest.raises(TypeError, match="non-default argument 'y' follows default argument"):
            Wrong()  # type: ignore[call-arg]


def test_a_first_use_that_is_interrupted_leaves_the_class_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(cls: type, **options: Any) -> None:
        complete(cls, **options)
        raise KeyboardInterrupt

    complete, kind = dataclasses.dataclass, declared(dataclass)["Frozen"]
    with monkeypatch.context() as patch:
        patch.setattr(dataclasses, "dataclass", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kind(name="a")
    theirs = declared(complete)["Frozen"]
    assert seen(kind(name="a")) == seen(theirs(name="a"))


def test_threads_that_use_a_class_first_all_get_the_whole_of_it() -> None:
    for _ in range(50):
        kind = declared(dataclass)["Below"]
        gate, values = threading.Barrier(4), []

        def use(kind: Any = kind, gate: Any = gate, values: Any = values) -> None:
            gate.wait()
            values.append(kind(name="a"))
            values.append(kind(name="A"))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(values) == 8
        assert len(set(map(repr, values))) == 1


def test_the_product_declares_its_values_by_it() -> None:
    """But for what nodes run, and what reads scripts, which knows nothing else of ours."""
    others = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in ("node", "script")
        and re.search(r"(?m)^from dataclasses import .*\bdataclass\b", path.read_text("utf-8"))
    ]
    assert others == [], "from cloudtrain.core.dataclass import dataclass"


def test_every_declaration_of_the_product_holds() -> None:
    """The standard library refuses a wrong one at import; ours is refused here."""
    count = 0
    for module in pkgutil.walk_packages(cloudtrain.__path__, "cloudtrain."):
        if ".node." in module.name or module.name.endswith("__main__"):
            continue
        try:
            found = importlib.import_module(module.name)
        except ImportError:  # of an extra
            continue
        for value in vars(found).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                count += 1
                inspect.signature(value)
    assert count > 300
