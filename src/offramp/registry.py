"""Named tables with spelling help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from offramp.errors import UnknownName

__all__ = ["Registry"]


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

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise UnknownName(self.kind, name, self._entries)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
