"""Code as a user's first lines: in processes that have loaded transformers, but not offramp.

They are forked from one new interpreter, because loading transformers takes seconds. Only its inner modules, which do
not depend on offramp, stay loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.programs import Completed

SERVER = """
import gc, json, os, sys, traceback
import transformers.models.bert.modeling_bert, transformers.pipelines, transformers.trainer, scipy.stats, accelerate
assert not any(name.startswith("offramp") for name in sys.modules)
del sys.modules["transformers"]
gc.freeze()
for line in sys.stdin:
    code, arguments, environment, hidden, output = json.loads(line)
    if (child := os.fork()) == 0:
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(os.path.join(output, name), os.O_WRONLY | os.O_CREAT), descriptor)
        sys.argv = ["-c", *arguments]
        sys.path = [path for path in sys.path if not os.path.isdir(os.path.join(path, hidden or os.devnull))]
        os.environ.update(environment)
        failed = 0
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            failed = 1
        sys.stdout.flush()
        os._exit(failed)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Interpreter:
    """A new interpreter from which processes are forked."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, code: str, *arguments: str, hidden: str = "", **environment: str) -> Completed:
        """Run code in a process that cannot import the package `hidden`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        files = [self.folder / name for name in ("stdout", "stderr")]
        for file in files:
            file.unlink(missing_ok=True)
        request: list[Any] = [code, arguments, environment, hidden, str(self.folder)]
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code_of_exit = int(self._process.stdout.readline())
        return Completed(code_of_exit, *(file.read_text() for file in files))

    def close(self) -> None:
        """End the interpreter."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
