"""An entry of a benchmark: what to measure, under which name."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Entry"]


@dataclass(frozen=True)
class Entry:
    """One model configuration to measure; it can be sent to another process."""

    name: str
    mode: str  # plain, pipeline, originals, full or early-exit
    backend: str = "torch"  # a runtime, or a library of `engines`
    dtype: str = "float32"
    graph: str | None = None  # of a baseline: the file with the full model
    layers: int | None = None  # of the graph, if it does not have all layers
    documents: float = 1.0  # fraction of the documents of each query that a reranker reads
    batches: tuple[int, ...] | None = None  # None: all batch sizes

    @property
    def adaptive(self) -> bool:
        """Whether rows may exit early."""
        return self.mode in ("early-exit", "originals")
