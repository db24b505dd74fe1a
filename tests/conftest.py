from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ["OMP_NUM_THREADS"] = "1"  # tiny models gain nothing from threads; also for the processes that tests start

import gc
import importlib
import shutil
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Exclude the imported libraries from garbage collection, and collect less often."""
    if not hasattr(session.config, "workerinput") and session.config.getoption("numprocesses", None):
        return  # pytest-xdist: the workers run the tests
    importlib.import_module("transformers.trainer")
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A tiny fine-tuned classifier per family, saved by transformers, with a tokenizer."""
    from tests.tiny import FAMILY_NAMES, save_classifier

    root = tmp_path_factory.mktemp("classifiers")
    return {name: save_classifier(name, root / name) for name in FAMILY_NAMES if name != "elasticbert"}


@pytest.fixture(scope="session")
def encoders(tmp_path_factory) -> dict[str, Path]:
    """A tiny encoder without a head per family."""
    from tests.tiny import FAMILY_NAMES, save_encoder

    root = tmp_path_factory.mktemp("encoders")
    return {name: save_encoder(name, root / name) for name in FAMILY_NAMES}


@pytest.fixture(scope="session")
def glue(tmp_path_factory) -> Path:
    """A GLUE folder with a small SST-2."""
    from tests.reviews import write_glue

    return write_glue(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="session")
def reviews(tmp_path_factory) -> Path:
    """A GLUE folder with an SST-2 that has enough rows for calibration."""
    from tests.reviews import write_glue

    return write_glue(tmp_path_factory.mktemp("reviews"), train=1200, dev=120)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, encoders, reviews) -> Path:
    """A tiny trained model whose exits differ, with its checkpoints; copy it before changing it."""
    from offramp.training.run import train
    from tests.reviews import settings

    output = tmp_path_factory.mktemp("trained") / "model"
    options = {"calibration_split": 0.4, "eval_every": 45, "keep_checkpoints": True, "learning_rate": 1e-3}
    train(settings(encoders["bert"], reviews, output, **options))
    return output


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """A new interpreter that has loaded transformers, but not offramp."""
    from tests.fresh import Interpreter

    interpreter = Interpreter(tmp_path_factory.mktemp("fresh"))
    yield interpreter
    interpreter.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved model."""
    from tests.tiny import adaptive

    root = tmp_path_factory.mktemp("cli")
    labels = ["no", "perhaps", "yes"]
    tiny = adaptive("bert", root / "encoder", num_labels=3, policy="patience:1", labels=labels)
    tiny.save_pretrained(root / "model")
    return str(root / "model")


@pytest.fixture
def copied(model, tmp_path):
    """A copy of the same model that tests may change."""
    return Path(shutil.copytree(model, tmp_path / "broken"))


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("a lovely film\n\nbad\n")
    return str(file)


@pytest.fixture(scope="module")
def one_thread():
    """Use one thread; tiny models gain nothing from more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium, shared by all tests of pages."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install offramp[dev])")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed (Debian: apt install chromium chromium-driver)")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    yield chrome
    chrome.quit()
