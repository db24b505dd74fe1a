"""A tiny model and a server of it, for all tests of the server."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from offramp.runtimes.torch import TorchStepper
from tests.server import run_server
from tests.tiny import adaptive

LABELS = ["bad", "good", "so so"]
TEXTS = ["a good film", "the plot was not very good", "dull", "a lovely short film in the long plot"]


@dataclass(frozen=True)
class WaitingStepper(TorchStepper):
    """A model that waits for permission before it predicts."""

    go: threading.Event = field(default_factory=threading.Event)

    def embed(self, batch):
        assert self.go.wait(60)
        return super().embed(batch)


def waiting_stepper(runner) -> WaitingStepper:
    """The model of a runner, which waits."""
    return WaitingStepper(
        **{name: getattr(runner.stepper, name) for name in ("family", "encoder", "heads", "answer_type")}
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model with a policy."""
    root = tmp_path_factory.mktemp("served")
    model = adaptive("bert", root / "encoder", labels=LABELS)
    model.config.policy = {"name": "entropy", "threshold": 0.9}
    model.save_pretrained(root / "model")
    return root / "model"


@pytest.fixture(scope="session")
def server(folder):
    with run_server(folder, "--allow-override", "--max-rows", "64", "--max-bytes", "20000") as running:
        yield running
