"""The installed package: what an import loads, the public names, the direction of imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import offramp
from tests.tiny import adaptive

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "offramp"


def python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", ["--help", "predict --help", "adapt --help", "train --help", "--version"])
def test_help_loads_neither_torch_nor_transformers(command):
    code = f"""
import sys
from offramp.cli.main import main
assert main({command.split()!r}) == 0
heavy = {{"torch", "transformers", "numpy", "safetensors", "huggingface_hub"}} & set(sys.modules)
assert not heavy, heavy
"""
    assert "offramp" in python(code)


def test_auto_classes_work_in_a_fresh_process(fresh, tmp_path):
    adaptive("bert", tmp_path / "encoder", num_labels=2).save_pretrained(tmp_path / "model")
    done = fresh.run(f"import sys, offramp, transformers{AUTO}", str(tmp_path / "model"))
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("LABEL_")


AUTO = """
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, pipeline
folder = sys.argv[1]
assert type(AutoConfig.from_pretrained(folder)).__name__ == "AdaptiveConfig"
assert type(AutoModelForSequenceClassification.from_pretrained(folder)).__name__ == "AdaptiveModel"
AutoTokenizer.from_pretrained(folder)
print(pipeline("text-classification", model=folder, tokenizer=folder)("a film")[0]["label"])
"""

# modules that load transformers before, in and after the model
INNER = [
    f"import offramp.{name}" for name in ("model.exits", "core.runner", "originals.convert", "evaluation.traces.about")
]
NAMES = {module: name for name, module in offramp._MODULES.items()}  # one public name per module
PUBLIC = [
    *(f"from offramp import {name}" for name in ("policies", *NAMES.values())),
    "import transformers, offramp",
    "import offramp, transformers",
    "import offramp, importlib.util; importlib.util.find_spec('transformers')",  # does not import
]


def test_every_import_order_works(fresh, tmp_path):
    """Each in a separate process; after all public names, transformers knows offramp's models."""
    adaptive("bert", tmp_path / "encoder", num_labels=2).save_pretrained(tmp_path / "model")
    for statement in INNER + PUBLIC:
        done = fresh.run(statement + (KNOWN if statement in PUBLIC else RESOURCES), str(tmp_path / "model"))
        assert done.code == 0, (statement, done.stderr)


RESOURCES = """
import importlib.resources, transformers
assert any(importlib.resources.files("transformers").iterdir()), "resources of transformers are hidden"
"""
KNOWN = f"""{RESOURCES}
import sys
assert type(transformers.AutoConfig.from_pretrained(sys.argv[1])).__name__ == "AdaptiveConfig"
"""


def test_public_names():
    assert offramp.__all__ == [
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
    assert sorted(offramp._MODULES) == sorted(set(offramp.__all__) - {"policies"})
    assert all(getattr(offramp, name).__doc__ for name in offramp.__all__)


# imports go down, or to the same level without a cycle; a name with a dot has a different level than its folder
LEVELS = [
    {"errors", "registry", "extras", "_auto", "model.renamed"},
    {
        "files",
        "core.batch",
        "core.machine",
        "core.progress",
        "data.source",
        "data.json_rows",
        "data.parquet",
        "data.reading",
        "data.questions",
        "data.rankings",
        "data.entities",
        "data.hashes",
    },
    {"answers", "model.class_table", "model.card_facts", "model.exit_spec"},
    {"core.stepper", "policies", "runtimes.runtime", "runtimes"},
    {"core.loop", "core.parts", "core.chunks", "encoders", "originals.width"},
    {"model.config", "model.saved_config", "data"},
    {"model", "core", "runtimes.torch", "runtimes.segments", "runtimes.replay", "runtimes.onnx", "runtimes.openvino"},
    {"model.adaptive"},
    {"training", "exports", "runtimes.loading", "originals.convert", "evaluation.traces"},
    {"evaluation", "originals", "originals.width.report"},
    {"calibration", "report"},
    {"adaptation", "serving", "cluster"},
    {"api"},
    {"cli", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def level(module: str) -> int:
    """Return the level of the longest matching prefix."""
    parts = module.split(".")
    return next(LEVEL[name] for size in range(len(parts), 0, -1) if (name := ".".join(parts[:size])) in LEVEL)


def imports() -> dict[str, set[str]]:
    """Return the offramp modules that each module imports; imports for type checking do not count."""
    modules = {}
    for file in SOURCE.rglob("*.py"):
        name = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                node.body = []
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "offramp":
                parent = node.module.removeprefix("offramp").removeprefix(".")
                imported |= {f"{parent}.{alias.name}".removeprefix(".") for alias in node.names} | {parent}
            elif isinstance(node, ast.Import):
                imported |= {alias.name.removeprefix("offramp.") for alias in node.names if "offramp." in alias.name}
        modules[name] = imported
    return {name: (imported & set(modules)) - {name} for name, imported in modules.items() if name != "__init__"}


def test_no_import_points_up():
    pairs = [(name, other) for name, imported in imports().items() for other in imported]
    assert len(pairs) > 300
    up = [f"{a} → {b}" for a, b in pairs if level(b) > level(a)]
    assert not up


def test_imports_have_no_cycle():
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as err:
        raise AssertionError(" → ".join(err.args[1])) from err


def test_every_module_has_a_level():
    parts = {
        path.name.removesuffix(".py")
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert parts - {"__init__", "py.typed"} == {name for name in LEVEL if "." not in name}


def test_the_readme_runs(tmp_path, monkeypatch):
    """The README's Python on torch, with tiny models and a larger risk."""
    from tests.adaptation.test_adapt import classifier, random_texts
    from tests.tiny import save_encoder

    text = (ROOT / "README.md").read_text()
    adapting, training = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    save_encoder("bert", tmp_path / "bert-base-uncased")
    classifier("bert", tmp_path / "my-classifier", 2)
    monkeypatch.chdir(tmp_path)
    assert "risk=0.02" in adapting and '"bert-base-uncased", exits=[3, 6, 9, 12]' in training
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in random_texts(700)))
    quick = 'risk=0.2, class_risk="none", epochs=12, variations=0'
    exec(adapting.replace("risk=0.02", quick).replace(', backend="onnx"', ""), {})
    assert (tmp_path / "fast-classifier" / "report.html").is_file()
    exec(training.replace('"bert-base-uncased", exits=[3, 6, 9, 12]', '"./bert-base-uncased", exits=[2, 4]'), {})
    assert (tmp_path / "own-model" / "config.json").is_file()


def test_the_readme_lists_all_policies_families_and_checkpoints():
    from offramp.encoders import FAMILIES
    from offramp.originals.convert import CHECKPOINT_KINDS
    from offramp.policies import POLICIES

    text = (ROOT / "README.md").read_text()
    assert [name for name in POLICIES if f"`{name}`" not in text] == []
    assert len(FAMILIES) == 10
    squeezed = text.lower().replace("xlm-r,", "xlm-roberta,").replace("-v2/v3", "-v2")
    assert [name for name in [*FAMILIES, *CHECKPOINT_KINDS] if name not in squeezed] == []
