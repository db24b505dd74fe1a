"""Make transformers' Auto classes know our models, without loading transformers for it.

`offramp.model.adaptive` registers itself when it is imported. If transformers is loaded when offramp is, that
happens at once; otherwise right after somebody loads transformers. So `import offramp` stays cheap,
`offramp --help` loads no torch, and whoever reaches an Auto class finds us in it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["watch"]


class _ThenOurs(importlib.abc.Loader):
    """Runs transformers' own loader, gives it back its place, then imports our model."""

    def __init__(self, loader: importlib.abc.Loader, watcher: _Watcher):
        self.loader, self.watcher = loader, watcher

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self.watcher in sys.meta_path:
            sys.meta_path.remove(self.watcher)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader  # resources and sources are asked of it
        self.loader.exec_module(module)
        if not _half_done():
            importlib.import_module("offramp.model.adaptive")


class _Watcher(importlib.abc.MetaPathFinder):
    """Waits for transformers and finds it as the other finders do."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "transformers":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenOurs(spec.loader, self)
                return spec
        return None


def _half_done() -> bool:
    """Whether it is an import of our own that loads transformers: a model imported from within would find it half done.

    Such an import loads the model itself, or needs none.
    """
    ours = [module for name, module in list(sys.modules.items()) if name.startswith("offramp.")]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in ours)


def watch() -> None:
    """Register now if transformers is loaded, else as soon as it is."""
    if "transformers" in sys.modules:
        importlib.import_module("offramp.model.adaptive")
    else:
        sys.meta_path.insert(0, _Watcher())
