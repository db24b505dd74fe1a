"""Registries: tables of named entries, with suggestions for misspelled names."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from offramp.errors import BadValue, UnknownName

__all__ = ["LazyRegistry", "Registry"]


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Registry(Mapping[str, Entry], Generic[Entry]):
    """A table of named entries; an unknown name raises `UnknownName`, which lists the available names."""

    def __init__(self, kind: str, entries: Iterable[Entry]):
        self.kind = kind
        self._entries = {entry.name: entry for entry in entries}

    def register(self, entry: Entry) -> Entry:
        """Add an entry, such as your own policy, and return it."""
        if entry.name in self:
            raise BadValue(f"A {self.kind} named {entry.name!r} is already registered. Choose another name.")
        self._entries[entry.name] = entry
        return entry

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise UnknownName(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class LazyRegistry(Registry[Entry]):
    """A registry whose entries are imported on first access."""

    def __init__(self, kind: str, locations: Mapping[str, str]):
        super().__init__(kind, ())
        self._locations = dict(locations)  # name: "module:attribute"

    def __getitem__(self, name: str) -> Entry:
        if name in self._locations and name not in self._entries:
            module, attribute = self._locations[name].split(":")
            self._entries[name] = getattr(importlib.import_module(module), attribute)
        if name not in self._entries:
            raise UnknownName(self.kind, name, self)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._locations, *self._entries]))

    def __len__(self) -> int:
        return len({*self._locations, *self._entries})
