"""What a runtime is: a name, what it needs, and how it opens what it runs. Nothing heavy is loaded for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offramp.errors import BadValue
from offramp.extras import require

__all__ = ["LoadOptions", "Runtime"]


@dataclass(frozen=True)
class LoadOptions:
    """What a model is loaded with."""

    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    max_length: int | None = None
    hub: Mapping[str, Any] = field(default_factory=dict)  # revision, token, …


@dataclass(frozen=True)
class Runtime:
    """A backend: it runs the weights themselves, exported graphs, or what its own loader makes of a folder."""

    name: str
    title: str
    extra: str | None = None  # what has to be installed beyond the package's own needs
    library: str = ""  # whose version a guarantee is bound to
    module: str | None = None  # of exported graphs: where `open_graph` and `runtime_version` are
    scales: tuple[str, ...] = ()  # kinds of int8 that it has fast kernels for
    has_bfloat16: bool = False  # it can run float32 graphs in bfloat16
    loader: Callable[[str, LoadOptions], Any] | None = None  # makes a `Runner` of a folder

    @property
    def runs_graphs(self) -> bool:
        """Whether it runs exported graphs."""
        return self.module is not None

    def check(self) -> None:
        """Refuse to go on where its libraries are not installed."""
        if self.extra is not None:
            require(self.extra, f"The backend {self.name}")

    def check_scales(self, int8: str) -> None:
        """Refuse a kind of int8 that it cannot run fast."""
        if int8 in ("auto", "none"):
            return
        if not self.runs_graphs:
            raise BadValue(f"The backend {self.name} has no int8; leave `int8=` out, or export for another one.")
        if int8 not in self.scales:
            raise BadValue(
                f"{self.title} has no fast kernels for {int8} scales; take `int8='{self.scales[0]}'` or none."
            )

    def open_graph(self, source: Any, threads: int | None = None, **options: Any) -> Any:
        """A graph, ready to run."""
        self.check()
        return self._module().open_graph(source, threads, **options)

    def version(self) -> str:
        """The library and its version, as far as it matters: what is fixed in between leaves answers alone."""
        self.check()
        return f"{self.library} {'.'.join(self._module().runtime_version().split('.')[:2])}"

    def _module(self) -> Any:
        return importlib.import_module(str(self.module))
