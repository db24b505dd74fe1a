"""Install the wheel into clean environments, bare and with each extra, and run what the extra is for.

`make test-wheel` builds the wheel and runs `python tests/wheels.py dist/*.whl`; `--only serve` tries one environment.
Libraries have the versions of `constraints.txt`, or with `--minimums` the lowest ones that `pyproject.toml` allows
(`make test-minimums`). The environments are made in a temporary folder, which is removed.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import traceback
import urllib.request
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class CommandFailed(Exception):
    """A command ended with another exit code than expected."""


class Environment:
    """A new virtual environment with the wheel, beside a tiny classifier, two tiny models and texts."""

    def __init__(self, folder: Path, requirement: str, constraints: Path):
        self.folder = folder
        venv.create(folder / "env", with_pip=True)
        started = time.time()
        self.python("-m", "pip", "install", "--quiet", "--constraint", constraints, requirement)
        print(f"  installed in {time.time() - started:.0f} s", flush=True)

    def python(self, *arguments: Any) -> str:
        return self._run(self.folder / "env" / "bin" / "python", *arguments)

    def offramp(self, *arguments: Any, code: int = 0) -> str:
        return self._run(self.folder / "env" / "bin" / "offramp", *arguments, code=code)

    def _run(self, *command: Any, code: int = 0) -> str:
        names = ("PYTHONPATH", "VIRTUAL_ENV")
        environment = {key: value for key, value in os.environ.items() if key not in names}
        environment["HF_HUB_OFFLINE"] = "1"
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=environment,
        )
        if done.returncode != code:
            raise CommandFailed(f"{' '.join(map(str, command))}: code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def check_missing(self, extra: str, *command: str) -> None:
        """Check that a command fails in one line that names the extra to install."""
        message = self.offramp(*command, code=2)
        assert f"pip install 'offramp[{extra}]'" in message and message.count("\n") == 1, message


def check_bare(env: Environment) -> None:
    assert "usage: offramp" in env.offramp("--help")
    assert re.search(r"exits +4, ", env.offramp("info", "model"))
    env.offramp("predict", "model", "texts.txt", "--output", "answers.csv")
    assert len((env.folder / "answers.csv").read_text().splitlines()) == 1 + 600
    env.check_missing("train", "adapt", "classifier", "texts.txt", "--output", "fast")
    env.check_missing("train", "evaluate", "model", "--file", "texts.txt", "--output", "run")
    env.check_missing("train,onnx", "export", "model")
    env.check_missing("train,openvino", "export", "model", "--backend", "openvino")
    env.check_missing("serve", "serve", "model")
    env.check_missing("serve", "audit", "state.json")
    env.check_missing("ray", "predict", "model", "texts.txt", "--engine", "ray", "--output", "answers")


def check_train(env: Environment) -> None:
    quick = ("--risk", "0.3", "--epochs", "12", "--variations", "0", "--exits", "3", "--convolution", "0")
    assert "With 90 % confidence" in env.offramp("adapt", "classifier", "texts.txt", *quick, "--output", "fast")
    assert len(env.offramp("predict", "fast", "texts.txt").splitlines()) == 600
    env.offramp("evaluate", "fast", "--file", "texts.txt", "--no-live", "--output", "evaluation")


def check_onnx(env: Environment) -> None:
    _check_runtime(env, "onnx")


def check_openvino(env: Environment) -> None:
    _check_runtime(env, "openvino")


def _check_runtime(env: Environment, backend: str) -> None:
    """Exporting uses the libraries of training; predicting with an export does not."""
    env.offramp("export", "model", "--backend", backend, "--int8", "none")
    assert len(env.offramp("predict", "model", "texts.txt", "--backend", backend).splitlines()) == 600


def check_serve(env: Environment) -> None:
    env.check_missing("otel", "serve", "model", "--otel")
    _check_server(env)


def check_otel(env: Environment) -> None:
    """Serve with tracing, and receive the span of the request."""
    paths: list[str] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        _check_server(env, "--otel", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_port}")
        collector.shutdown()
    assert paths == ["/v1/traces"], paths


def _check_server(env: Environment, *options: str, **variables: str) -> None:
    command = [env.folder / "env" / "bin" / "offramp", "serve", "model", "--port", "0", *options]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=env.folder, env=environment)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert found, "no URL"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{found[0]}/ready")
                break
            except OSError:
                time.sleep(0.1)
        body = json.dumps({"inputs": "a lovely film"}).encode()
        request = urllib.request.Request(found[0], body, {"content-type": "application/json"})
        assert "label" in urllib.request.urlopen(request).read().decode()
    finally:
        process.terminate()
        assert process.wait(60) == 128 + 15


def check_sentencepiece(env: Environment) -> None:
    """Predict with a tokenizer that comes as a .model file only."""
    for file in (env.folder / "albert").glob("tokenizer*"):
        file.unlink()
    train = "import sentencepiece as s, sys; s.SentencePieceTrainer.train(input=sys.argv[1], model_prefix=sys.argv[2], "
    train += "vocab_size=35, user_defined_symbols=['[CLS]', '[SEP]', '[MASK]', '<pad>'], hard_vocab_limit=False)"
    env.python("-c", train, "texts.txt", "albert/spiece")
    env.offramp("predict", "albert", "texts.txt", "--output", "answers.csv")
    assert len((env.folder / "answers.csv").read_text().splitlines()) == 1 + 600


def check_ray(env: Environment) -> None:
    env.offramp("predict", "model", "texts.txt", "--engine", "ray", "--workers", "1", "--output", "answers")
    count = "import pyarrow.parquet as p, sys; print(sum(len(p.read_table(f)) for f in sys.argv[1:]))"
    assert env.python("-c", count, *sorted((env.folder / "answers").glob("part-*"))).split() == ["600"]


CHECKS: dict[str, Callable[[Environment], None]] = {  # by extras
    "": check_bare,
    "train": check_train,
    "train,onnx": check_onnx,
    "train,openvino": check_openvino,
    "serve": check_serve,
    "serve,otel": check_otel,
    "sentencepiece": check_sentencepiece,
    "ray": check_ray,
}


def minimums() -> str:
    """Return constraints with the lowest version of every library of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    users = [line for name in extras if name not in ("dev", "docs") for line in extras[name]]
    lowest = [re.match(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", line) for line in [*project["dependencies"], *users]]
    return "".join(f"{found[1]}=={found[2]}\n" for found in lowest if found)


def write_inputs(folder: Path) -> None:
    """Write a tiny classifier, two tiny models with exits, and texts."""
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    sys.path.insert(0, str(ROOT))
    from tests.adaptation.test_adapt import classifier, random_texts, write
    from tests.tiny import adaptive

    classifier("bert", folder / "classifier", 2)
    adaptive("bert", folder / "encoder", labels=["no", "yes"], policy="entropy:0.5").save_pretrained(folder / "model")
    adaptive("albert", folder / "encoder", labels=["no", "yes"]).save_pretrained(folder / "albert")
    write(folder / "texts.txt", random_texts(600))


def main() -> None:
    """Run the checks of every environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--only", choices=[*CHECKS], help="only the environment with these extras")
    parser.add_argument(
        "--minimums", action="store_true", help="install the lowest versions that pyproject.toml allows"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="offramp-wheels-") as name:
        root = Path(name)
        constraints = ROOT / "constraints.txt"
        if args.minimums:
            constraints = root / "minimums.txt"
            constraints.write_text(minimums())
        failed = [
            extras
            for extras in (CHECKS if args.only is None else [args.only])
            if not works(extras, root / (extras.replace(",", "-") or "bare"), args.wheel, constraints)
        ]
    sys.exit(f"{len(failed)} failed" if failed else 0)


def works(extras: str, folder: Path, wheel: Path, constraints: Path) -> bool:
    """Install the wheel with these extras into a new environment, use it, and remove it."""
    name = f"offramp[{extras}]" if extras else "offramp"
    print(name, flush=True)
    folder.mkdir()
    write_inputs(folder)
    try:
        CHECKS[extras](Environment(folder, f"{name} @ {wheel.absolute().as_uri()}", constraints))
    except (AssertionError, CommandFailed):
        traceback.print_exc()
        return False
    finally:
        shutil.rmtree(folder)
    print("  works", flush=True)
    return True


if __name__ == "__main__":
    main()
