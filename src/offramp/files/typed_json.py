"""Parse plain JSON data into frozen dataclasses; a value of the wrong type is reported with its path."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["TypeMismatch", "parse_json_as"]

MAX_NUMBER = 10**18  # larger numbers are rejected as corrupt

T = TypeVar("T")


class TypeMismatch(Exception):
    """A value does not match the type of its field."""


def parse_json_as(target_type: type[T], value: Any, path: str = "") -> T:
    """Return `value` as an instance of a dataclass, list, dict, number or string; unknown fields are ignored."""
    parsed: Any = _parse(target_type, value, path)
    return parsed


def _parse(target_type: Any, value: Any, path: str) -> Any:
    if target_type is Any:
        return value
    if is_dataclass(target_type):
        return _parse_dataclass(target_type, value, path)
    origin, arguments = get_origin(target_type), get_args(target_type)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _parse_union([argument for argument in arguments if argument is not type(None)], value, path)
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            raise TypeMismatch(f"{path} is {value!r:.40}")
        item_type = arguments[0] if arguments else Any
        fixed_length = origin is tuple and len(arguments) > 1 and arguments[1] is not Ellipsis
        if fixed_length and len(value) != len(arguments):
            raise TypeMismatch(f"{path} is {value!r:.40}")
        return origin(_parse(item_type, item, f"{path}[{index}]") for index, item in enumerate(value))
    if origin in (dict, Mapping) or target_type in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise TypeMismatch(f"{path} is {value!r:.40}")
        item_type = arguments[1] if arguments else Any
        return {str(name): _parse(item_type, item, f"{path}.{name}".lstrip(".")) for name, item in value.items()}
    return _parse_scalar(target_type, value, path)


def _parse_union(candidates: list[Any], value: Any, path: str) -> Any:
    """Parse as the first candidate type that matches."""
    for candidate in candidates[:-1]:
        try:
            return _parse(candidate, value, path)
        except TypeMismatch:
            continue
    return _parse(candidates[-1], value, path)


def _parse_dataclass(target_type: Any, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise TypeMismatch(f"{path or 'it'} is {value!r:.40}")
    hints, arguments = get_type_hints(target_type), {}
    for field in fields(target_type):
        if field.name in value:
            field_path = f"{path}.{field.name}".lstrip(".")
            arguments[field.name] = _parse(hints[field.name], value[field.name], field_path)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise TypeMismatch(f"{path} has no {field.name}" if path else f"it has no {field.name}")
    return target_type(**arguments)


def _parse_scalar(target_type: Any, value: Any, path: str) -> Any:
    if target_type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= MAX_NUMBER else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_wrong_type = not isinstance(value, target_type) or (target_type is int and isinstance(value, bool))
    if is_wrong_type or (is_number and not abs(value) <= MAX_NUMBER):
        raise TypeMismatch(f"{path} is {value!r:.40}")
    return value
