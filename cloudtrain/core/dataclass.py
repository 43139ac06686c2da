"""`@dataclass` as the standard library has it, but carried out when the class is first used.

`dataclasses.dataclass` compiles `__init__`, `__eq__` and others from text: 0.4 ms a class on Python
3.11, a third of the time of `plan`, which imports three classes for each that it uses. What needs
no text is shared by all classes: `__repr__`, `__eq__` and `__hash__` of their own are 0.15 ms,
`__init__`, `__setattr__` and `__delattr__` of a frozen one with keywords alone 0.25 ms.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field as field
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_COMPLETING = threading.RLock()


def _dataclass(cls: Any = None, /, **options: Any) -> Any:
    """Decorator that calls `dataclasses.dataclass` at the class's first instance (by a copy or a
    pickle too), at `fields`, `is_dataclass` or `inspect.signature`, or for a subclass. Before that,
    the class's attribute of a field with `field(…)` is the latter."""
    if cls is None:
        return lambda cls: _dataclass(cls, **options)
    own_new = cls.__new__ is not object.__new__ and cls.__new__.__module__ != __name__
    if own_new or options.get("slots"):  # `slots` makes another class
        return dataclasses.dataclass(cls, **options)

    def complete() -> None:
        with _COMPLETING:
            if cls.__new__ is not complete_and_new:
                return
            before = dict(vars(cls))
            try:
                # Else it becomes the signature, which takes longer than a method.
                cls.__doc__ = cls.__doc__ or cls.__name__
                _carry_out(cls, options)
                cls.__new__ = staticmethod(_new)  # the last, until which other threads wait
            except BaseException:  # Ctrl-C, too: `dataclass` refuses a class that it has begun
                for name in vars(cls).keys() - before.keys():
                    delattr(cls, name)
                for name, value in before.items():
                    if vars(cls).get(name) is not value:
                        setattr(cls, name, value)
                raise

    def complete_and_new(kind: type, /, *_: Any, **__: Any) -> Any:
        complete()
        return object.__new__(kind)

    cls.__new__ = staticmethod(complete_and_new)
    cls.__dataclass_fields__ = _Fields(complete)
    cls.__signature__ = _Signature()
    return cls


_OF_TEXT = frozenset({"eq", "order", "repr", "unsafe_hash"})
_OF_ITS_OWN = frozenset({"__eq__", "__hash__", "__repr__"})


def _carry_out(cls: Any, options: dict[str, Any]) -> None:
    """`dataclasses.dataclass`, but with what all classes share, unless one has its own."""
    if _OF_TEXT & options.keys() or _OF_ITS_OWN & vars(cls).keys():
        dataclasses.dataclass(cls, **options)
        return
    is_usual = _is_usual(cls, options)
    without = {"frozen": False, "init": False} if is_usual else {}
    dataclasses.dataclass(cls, eq=False, repr=False, **{**options, **without})
    own = dataclasses.fields(cls)
    cls.__shown__ = tuple(one.name for one in own if one.repr)
    cls.__compared__ = _values([one for one in own if one.compare])
    hashed = [one for one in own if (one.compare if one.hash is None else one.hash)]
    cls.__hashed__ = _values(hashed)
    cls.__repr__, cls.__eq__ = _repr, _eq
    cls.__hash__ = _hash if options.get("frozen") else None
    params = cls.__dataclass_params__
    params.eq = params.repr = True
    if is_usual:
        cls.__init__ = _initializer(cls, own)
        cls.__setattr__, cls.__delattr__ = _setattr, _delattr
        params.frozen = params.init = True


def _is_usual(cls: Any, options: dict[str, Any]) -> bool:
    """True for a frozen class that takes keywords alone, with no special field, method or base."""
    return (
        options == {"frozen": True, "kw_only": True}
        and not _OF_USUAL & vars(cls).keys()
        and not any(dataclasses.is_dataclass(base) for base in cls.__bases__)
        and not any(
            "InitVar" in str(kind) for kind in vars(cls).get("__annotations__", {}).values()
        )
        and not any(
            isinstance(value, dataclasses.Field) and not value.init for value in vars(cls).values()
        )
    )


_OF_USUAL = frozenset({"__init__", "__setattr__", "__delattr__"})


def _initializer(cls: Any, own: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    names = frozenset(one.name for one in own)
    defaults = {one.name: one.default for one in own if one.default is not dataclasses.MISSING}
    made = [
        (one.name, one.default_factory)
        for one in own
        if one.default_factory is not dataclasses.MISSING
    ]
    needed = names - defaults.keys() - {name for name, _ in made}
    after = hasattr(cls, "__post_init__")

    def __init__(self: Any, **given: Any) -> None:
        keys = given.keys()
        if not (keys >= needed and keys <= names):
            raise TypeError(f"{cls.__qualname__}.__init__() {_mistake(own, needed, given)}")
        values = self.__dict__
        values.update(defaults)
        values.update(given)
        for name, make in made:
            if name not in given:
                values[name] = make()
        if after:
            self.__post_init__()

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    __init__.own = own  # type: ignore[attr-defined]
    return __init__


def _mistake(
    own: Iterable[dataclasses.Field[Any]], needed: Collection[str], given: Mapping[str, Any]
) -> str:
    """Text of Python on such arguments."""
    names = [one.name for one in own]
    for name in given:
        if name not in names:
            return f"got an unexpected keyword argument {name!r}"
    *first, last = [repr(name) for name in names if name in needed and name not in given]
    both = f"{', '.join(first)}{',' if len(first) > 1 else ''} and {last}" if first else last
    plural = "s" if first else ""
    return f"missing {len(first) + 1} required keyword-only argument{plural}: {both}"


def _setattr(self: Any, name: str, value: object) -> None:
    _refuse(self, name, "assign to")
    object.__setattr__(self, name, value)


def _delattr(self: Any, name: str) -> None:
    _refuse(self, name, "delete")
    object.__delattr__(self, name)


def _refuse(self: Any, name: str, what: str) -> None:
    kind = type(self)
    if "__dataclass_fields__" in vars(kind) or name in kind.__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")


def _values(fields: list[dataclasses.Field[Any]]) -> Callable[[Any], Any]:
    """A function that returns the fields' values of an instance."""
    return attrgetter(*(one.name for one in fields)) if fields else _NoValues()


class _NoValues:
    def __call__(self, _: object) -> tuple[()]:
        return ()


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__shown__)
    return f"{self.__class__.__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__compared__(self) == self.__compared__(other)


def _hash(self: Any) -> int:
    return hash(self.__hashed__(self))


def _new(kind: type, /, *_: Any, **__: Any) -> Any:
    """`__new__` of a complete class. `del cls.__new__` would leave a class that takes no arguments:
    https://github.com/python/cpython/issues/105888."""
    return object.__new__(kind)


class _Fields:
    """`__dataclass_fields__` of a class until it is complete."""

    def __init__(self, complete: Callable[[], None]) -> None:
        self._complete = complete

    def __get__(self, _: object, owner: Any) -> Any:
        self._complete()
        return owner.__dataclass_fields__


class _Signature:
    """`__signature__` of a class: that of its `__init__`, which `__new__` hides."""

    def __get__(self, _: object, owner: type) -> inspect.Signature:
        dataclasses.fields(owner)
        own = getattr(owner.__init__, "own", None)  # type: ignore[misc]
        if own is not None:
            return inspect.Signature(list(map(_parameter, own)), return_annotation=None)
        method = inspect.signature(owner.__init__)  # type: ignore[misc]
        return method.replace(parameters=list(method.parameters.values())[1:])


def _parameter(one: dataclasses.Field[Any]) -> inspect.Parameter:
    has_factory = one.default_factory is not dataclasses.MISSING
    default = inspect.Parameter.empty if one.default is dataclasses.MISSING else one.default
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=_Factory() if has_factory else default,
        annotation=one.type,
    )


class _Factory:
    """Default of a parameter that is made for each call, as `dataclasses` shows it."""

    def __repr__(self) -> str:
        return "<factory>"


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
