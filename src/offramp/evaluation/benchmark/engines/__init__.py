"""Other libraries that run the full model, as baselines; one file per library, used where it is installed."""

from __future__ import annotations

from offramp.evaluation.benchmark.engines.engine import Engine, FullModel
from offramp.registry import Registry

__all__ = ["ENGINES", "Engine", "FullModel"]

_HERE = "offramp.evaluation.benchmark.engines"

ENGINES: Registry[Engine] = Registry(
    "baseline",
    [
        Engine("optimizer", "ONNX Runtime's transformer optimizer", f"{_HERE}.ort_optimizer", {"sympy": "sympy"}),
        Engine("compile", "torch.compile", f"{_HERE}.torch_compile"),
        Engine("torch-int8", "torch int8", f"{_HERE}.torch_int8"),
        Engine("torchao", "torchao int8", f"{_HERE}.torch_ao", {"torchao": "torchao"}),
        Engine("ctranslate2", "CTranslate2", f"{_HERE}.ct2", {"ctranslate2": "ctranslate2"}),
        Engine("llama.cpp", "llama.cpp", f"{_HERE}.llama", {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}),
    ],
)
