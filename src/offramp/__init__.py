"""offramp: early exits for BERT-style encoders.

    import offramp

    result = offramp.adapt("my-classifier", texts, output="fast", risk=0.02)
    for prediction in result.predict(more_texts):
        print(prediction.label, prediction.exit_layer)

The names below are the public API, together with `offramp.policies` and `offramp.errors`. All other modules are private
and may change without notice. Libraries such as torch are imported on first use. `import offramp` registers its models
with the Auto classes of transformers, whichever of the two is imported first (`_auto.py`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offramp import _auto

if TYPE_CHECKING:
    from offramp import policies
    from offramp.answers import ANSWER_TYPES
    from offramp.answers.answer import Answer
    from offramp.answers.answer_type import AnswerType
    from offramp.api.adapt import AdaptResult, adapt
    from offramp.api.audit import AuditResult, audit
    from offramp.api.calibrate import calibrate
    from offramp.api.evaluate import Comparison, EvaluationResult, compare, evaluate
    from offramp.api.export import BenchmarkResult, ExportResult, TuneResult, benchmark, export, tune
    from offramp.api.info import ModelInfo, info
    from offramp.api.predict import JobResult, predict
    from offramp.api.serve import serve
    from offramp.api.train import convert, train
    from offramp.calibration.run import CalibrationResult
    from offramp.core.runner import Runner
    from offramp.errors import OfframpError
    from offramp.model.adaptive import AdaptiveModel, AdaptiveOutput
    from offramp.model.config import AdaptiveConfig
    from offramp.runtimes import RUNTIMES, Runtime
    from offramp.runtimes.loading import load
    from offramp.training.results import TrainResult

__version__ = "0.2.0"

_MODULES = {
    "ANSWER_TYPES": "offramp.answers",
    "AdaptResult": "offramp.api.adapt",
    "AdaptiveConfig": "offramp.model.config",
    "AdaptiveModel": "offramp.model.adaptive",
    "AdaptiveOutput": "offramp.model.adaptive",
    "Answer": "offramp.answers.answer",
    "AnswerType": "offramp.answers.answer_type",
    "AuditResult": "offramp.api.audit",
    "BenchmarkResult": "offramp.api.export",
    "CalibrationResult": "offramp.calibration.run",
    "Comparison": "offramp.api.evaluate",
    "EvaluationResult": "offramp.api.evaluate",
    "ExportResult": "offramp.api.export",
    "JobResult": "offramp.api.predict",
    "ModelInfo": "offramp.api.info",
    "OfframpError": "offramp.errors",
    "RUNTIMES": "offramp.runtimes",
    "Runner": "offramp.core.runner",
    "Runtime": "offramp.runtimes",
    "TrainResult": "offramp.training.results:TrainResult",
    "TuneResult": "offramp.api.export",
    "adapt": "offramp.api.adapt",
    "audit": "offramp.api.audit",
    "benchmark": "offramp.api.export",
    "calibrate": "offramp.api.calibrate",
    "compare": "offramp.api.evaluate",
    "convert": "offramp.api.train",
    "evaluate": "offramp.api.evaluate",
    "export": "offramp.api.export",
    "info": "offramp.api.info",
    "load": "offramp.runtimes.loading",
    "predict": "offramp.api.predict",
    "serve": "offramp.api.serve",
    "train": "offramp.api.train",
    "tune": "offramp.api.export",
}

__all__ = [
    "ANSWER_TYPES",
    "RUNTIMES",
    "AdaptResult",
    "AdaptiveConfig",
    "AdaptiveModel",
    "AdaptiveOutput",
    "Answer",
    "AnswerType",
    "AuditResult",
    "BenchmarkResult",
    "CalibrationResult",
    "Comparison",
    "EvaluationResult",
    "ExportResult",
    "JobResult",
    "ModelInfo",
    "OfframpError",
    "Runner",
    "Runtime",
    "TrainResult",
    "TuneResult",
    "adapt",
    "audit",
    "benchmark",
    "calibrate",
    "compare",
    "convert",
    "evaluate",
    "export",
    "info",
    "load",
    "policies",
    "predict",
    "serve",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "policies":
        return importlib.import_module("offramp.policies")
    if name in _MODULES:
        module, _, attribute = _MODULES[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'offramp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


_auto.register_models()
