"""`@dataclass` as the standard library has it, but carried out when the class is first used.

`dataclasses.dataclass` compiles `__init__`, `__eq__` and others from text: 0.4 ms a class on Python
3.11, a third of the time of `plan`, which imports three classes for each that it uses. What needs
no text is shared by all classes: `__repr__`, `__eq__` and `__hash__` of their own are 0.15 ms.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
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
    dataclasses.dataclass(cls, eq=False, repr=False, **options)
    own = dataclasses.fields(cls)
    cls.__shown__ = tuple(one.name for one in own if one.repr)
    cls.__compared__ = _values([one for one in own if one.compare])
    hashed = [one for one in own if (one.compare if one.hash is None else one.hash)]
    cls.__hashed__ = _values(hashed)
    cls.__repr__, cls.__eq__ = _repr, _eq
    cls.__hash__ = _hash if options.get("frozen") else None
    params = cls.__dataclass_params__
    params.eq = params.repr = True


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
        method = inspect.signature(owner.__init__)  # type: ignore[misc]
        return method.replace(parameters=list(method.parameters.values())[1:])


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
