"""The description of a backend: its name, its dependencies and how it loads a model."""

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
    """The options of `offramp.load`."""

    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    max_length: int | None = None
    hub: Mapping[str, Any] = field(default_factory=dict)  # revision, token, …


@dataclass(frozen=True)
class Runtime:
    """A backend that runs PyTorch weights, exported graphs, or a model folder with its own loader."""

    name: str
    title: str
    extra: str | None = None  # the extra of offramp to install
    library: str = ""  # the library whose version a guarantee depends on
    module: str | None = None  # for exported graphs: the module of `open_graph` and `runtime_version`
    scales: tuple[str, ...] = ()  # int8 scales with fast kernels
    has_bfloat16: bool = False  # can run float32 graphs in bfloat16
    loader: Callable[[str, LoadOptions], Any] | None = None  # loads a folder and returns a `Runner`

    @property
    def runs_graphs(self) -> bool:
        """Whether the backend runs exported graphs."""
        return self.module is not None

    def check(self) -> None:
        """Raise `MissingExtra` if a library of the backend is not installed."""
        if self.extra is not None:
            require(self.extra, f"Backend {self.name!r}")

    def check_scales(self, int8: str) -> None:
        """Raise `BadValue` if the backend has no fast kernels for these int8 scales."""
        if int8 in ("auto", "none"):
            return
        if not self.runs_graphs:
            raise BadValue(f"Backend {self.name!r} does not support int8. Remove `int8=` or choose another backend.")
        if int8 not in self.scales:
            raise BadValue(
                f"{self.title} has no fast kernels for {int8} scales. Use `int8='{self.scales[0]}'` or `int8='none'`."
            )

    def open_graph(self, source: Any, threads: int | None = None, **options: Any) -> Any:
        """Load a graph."""
        self.check()
        return self._module().open_graph(source, threads, **options)

    def version(self) -> str:
        """Return the library with its major and minor version; patch releases do not change predictions."""
        self.check()
        return f"{self.library} {'.'.join(self._module().runtime_version().split('.')[:2])}"

    def _module(self) -> Any:
        return importlib.import_module(str(self.module))
