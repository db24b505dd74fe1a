"""Read plain data (JSON) as frozen dataclasses; whatever has another type is named with its place."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["Mistyped", "typed"]

MOST = 10**18  # of any number: what is larger was not counted

T = TypeVar("T")


class Mistyped(Exception):
    """A value that is not what its field says."""


def typed(kind: type[T], value: Any, place: str = "") -> T:
    """A value of a type: a dataclass, a list, a dict, a number, a text; unknown fields are left out."""
    made: Any = _typed(kind, value, place)
    return made


def _typed(kind: Any, value: Any, place: str) -> Any:
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _object(kind, value, place)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _first([one for one in arguments if one is not type(None)], value, place)
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            raise Mistyped(f"{place} is {value!r:.40}")
        each = arguments[0] if arguments else Any
        fixed = origin is tuple and len(arguments) > 1 and arguments[1] is not Ellipsis
        if fixed and len(value) != len(arguments):
            raise Mistyped(f"{place} is {value!r:.40}")
        return origin(_typed(each, one, f"{place}[{number}]") for number, one in enumerate(value))
    if origin in (dict, Mapping) or kind in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise Mistyped(f"{place} is {value!r:.40}")
        each = arguments[1] if arguments else Any
        return {str(name): _typed(each, one, f"{place}.{name}".lstrip(".")) for name, one in value.items()}
    return _plain(kind, value, place)


def _first(kinds: list[Any], value: Any, place: str) -> Any:
    """The first of several types that fits."""
    for kind in kinds[:-1]:
        try:
            return _typed(kind, value, place)
        except Mistyped:
            continue
    return _typed(kinds[-1], value, place)


def _object(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise Mistyped(f"{place or 'it'} is {value!r:.40}")
    hints, given = get_type_hints(kind), {}
    for field in fields(kind):
        where = f"{place}.{field.name}".lstrip(".")
        if field.name in value:
            given[field.name] = _typed(hints[field.name], value[field.name], where)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise Mistyped(f"{place} has no {field.name}" if place else f"it has no {field.name}")
    return kind(**given)


def _plain(kind: Any, value: Any, place: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= MOST else value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)) or (number and not abs(value) <= MOST):
        raise Mistyped(f"{place} is {value!r:.40}")
    return value
