"""Register offramp's models with transformers' Auto classes without importing transformers.

Importing `offramp.model.adaptive` registers the models. If transformers is already imported, `register_models` imports
it at once; otherwise an import hook does so right after transformers is imported. This keeps `import offramp` fast:
`offramp --help` does not import torch.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["register_models"]


class _RegisteringLoader(importlib.abc.Loader):
    """Runs transformers' own loader, restores it as the module's loader, then imports offramp's models."""

    def __init__(self, loader: importlib.abc.Loader, finder: _TransformersFinder):
        self.loader, self.finder = loader, finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader  # for resources and sources
        self.loader.exec_module(module)
        if not _offramp_is_importing():
            importlib.import_module("offramp.model.adaptive")


class _TransformersFinder(importlib.abc.MetaPathFinder):
    """Finds transformers with the other finders and wraps its loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "transformers":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _RegisteringLoader(spec.loader, self)
                return spec
        return None


def _offramp_is_importing() -> bool:
    """Return whether a module of offramp is being imported: it imported transformers and is only partly initialised.

    Such a module imports the models itself if it needs them.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("offramp.")]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in modules)


def register_models() -> None:
    """Register the models now if transformers is imported, otherwise right after its import."""
    if "transformers" in sys.modules:
        importlib.import_module("offramp.model.adaptive")
    else:
        sys.meta_path.insert(0, _TransformersFinder())
