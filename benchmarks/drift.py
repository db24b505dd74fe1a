"""Audit a guarantee live: on texts like the calibration rows, and on a stream that changes to other texts halfway.

    python benchmarks/drift.py --data GLUE --work DIR [--audit 0.5]

WORK is the folder of adapt_results.py after its case minilm-sst2. The adapted model is served with an audit. The first
stream is 4,000 unused rows of SST-2; the second is 2,000 of them, then 2,000 sentences of STS-B (captions, news,
forums).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from datetime import date
from pathlib import Path
from typing import Any

from adapt_results import CASES, glue, split
from offramp.core.machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "drift.json"
BATCH = 20


def call(url: str, body: Any = None) -> Any:
    """Send a request and return its JSON response."""
    with urllib.request.urlopen(url, None if body is None else json.dumps(body).encode(), timeout=60) as reply:
        return json.loads(reply.read())


def settled_audit(url: str) -> dict[str, Any]:
    """Return the audit once all drawn texts are audited."""
    previous: dict[str, Any] = {}
    while (audit := call(f"{url}/info")["audit"]) != previous:
        previous = audit
        time.sleep(0.3)
    return previous


def stream(model: Path, texts: list[str], share: float) -> dict[str, Any]:
    """Send the texts; return the audit halfway and at the end, and the text at which each alarm was raised."""
    command = [sys.executable, "-m", "offramp", "serve", str(model), "--port", "0", "--audit", str(share)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        match = re.search(r"http://\S+:\d+", server.stdout.readline() if server.stdout else "")
        assert match is not None, "the server did not start"
        url = match[0]
        subprocess.run(["curl", "--silent", "--retry", "20", "--retry-all-errors", f"{url}/ready"], check=True)
        alarms: dict[str, Any] = {}
        halves = []
        for number, batch in enumerate(batches(texts)):
            call(url, {"inputs": batch, "parameters": {"truncate": True}})
            audit = call(f"{url}/info")["audit"]
            for name in ("drifting", "violated"):
                if audit[name] and name not in alarms:
                    alarms[name] = {"text": (number + 1) * BATCH, "audited": audit["audited"]}
            if (number + 1) * BATCH in (len(texts) // 2, len(texts)):
                halves.append(settled_audit(url))
        return {"alarms": alarms, "at half time": halves[0], "at the end": halves[1]}
    finally:
        server.terminate()
        server.wait()


def batches(texts: list[str]) -> list[list[str]]:
    """Split texts into batches."""
    return [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]


def main() -> None:
    """Run both streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--audit", type=float, default=0.5)
    args = parser.parse_args()
    case = next(case for case in CASES if case.name == "minilm-sst2")
    usual = [texts[0] for texts, _ in split(case, args).unseen]
    other = list(dict.fromkeys(texts[0] for texts, _ in glue("sts-b")(args)[0]))
    half = len(usual) // 2
    model = Path(args.work) / case.name / "fast"
    streams = {"the usual texts": usual, "other texts from half time on": usual[:half] + other[:half]}
    results: dict[str, Any] = {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "share": args.audit,
        "texts": len(usual),
    }
    results["streams"] = {name: stream(model, texts, args.audit) for name, texts in streams.items()}
    print(json.dumps(results, indent=1))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
