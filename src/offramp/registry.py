"""Named tables with spelling help."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from offramp.errors import BadValue, UnknownName

__all__ = ["LazyRegistry", "Registry"]


class Named(Protocol):
    """Anything that carries its name."""

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Registry(Mapping[str, Entry], Generic[Entry]):
    """A table of named entries; a name that is not in it raises `UnknownName` with the list."""

    def __init__(self, kind: str, entries: Iterable[Entry]):
        self.kind = kind
        self._entries = {entry.name: entry for entry in entries}

    def register(self, entry: Entry) -> Entry:
        """Add an entry from outside the package; returns it."""
        if entry.name in self:
            raise BadValue(f"There is a {self.kind} called {entry.name!r} already; choose another name.")
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
    """A table whose entries are loaded when they are first asked for; names are known before."""

    def __init__(self, kind: str, places: Mapping[str, str]):
        super().__init__(kind, ())
        self._places = dict(places)  # "module:attribute" by name

    def __getitem__(self, name: str) -> Entry:
        if name in self._places and name not in self._entries:
            module, attribute = self._places[name].split(":")
            self._entries[name] = getattr(importlib.import_module(module), attribute)
        if name not in self._entries:
            raise UnknownName(self.kind, name, self)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._places, *self._entries]))

    def __len__(self) -> int:
        return len({*self._places, *self._entries})
