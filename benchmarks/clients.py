"""Third-party clients against a real server, compared with `offramp predict` on the same texts.

    python benchmarks/clients.py MODEL TEXTS [--rows 300] [--work DIR]

TEXTS has one text per line. Clients: `huggingface_hub` in Python, `@huggingface/inference` in Node, Triton's client
with tensors in JSON and in binary, KServe's client, and schemathesis, which makes requests from the OpenAPI
description. They are installed into WORK (by default a temporary folder). Every client must return the labels of
`offramp predict`, and its scores up to 1e-4; schemathesis must find no 5xx response and none that does not match the
description. The figures are saved in results/clients.json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import venv
from datetime import date
from pathlib import Path
from typing import Any

from offramp.core.machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "clients.json"
PYTHON_CLIENTS = ["schemathesis==4.32.5", "kserve==0.21.0", "tritonclient[http]==2.73.0"]
NODE_CLIENTS = ["@huggingface/inference@4.13.30"]
CHECKS = (
    "not_a_server_error,response_schema_conformance,content_type_conformance,status_code_conformance,"
    "response_headers_conformance"
)
TOLERANCE = 1e-4

# Every program gets the URL and a JSON file of texts, and prints [label, score] per text as JSON.
HUB = """
import json, sys
from huggingface_hub import InferenceClient
client = InferenceClient(sys.argv[1])
best = [client.text_classification(text, top_k=1)[0] for text in json.load(open(sys.argv[2]))]
print(json.dumps([[entry.label, entry.score] for entry in best]))
"""
KSERVE = """
import asyncio, json, sys
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
async def main(url, file):
    texts = json.load(open(file))
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=1, timeout=60))
    assert await client.is_server_ready(url) and await client.is_model_ready(url, "model")
    request = InferRequest(model_name="model", infer_inputs=[InferInput("text", [len(texts)], "BYTES", data=texts)])
    outputs = {output.name: output.data for output in (await client.infer(url, request, model_name="model")).outputs}
    print(json.dumps(list(zip(outputs["label"], outputs["score"]))))
asyncio.run(main(*sys.argv[1:]))
"""
TRITON = """
import json, sys
import numpy as np
from tritonclient import http
texts = json.load(open(sys.argv[2]))
client = http.InferenceServerClient(sys.argv[1].removeprefix("http://"))
assert client.is_server_live() and client.is_model_ready("model") and client.is_model_ready("model", "1")
assert client.get_model_metadata("model")["inputs"][0]["datatype"] == "BYTES"
inputs = http.InferInput("text", [len(texts)], "BYTES")
inputs.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object), binary_data=BINARY)
names = ("label", "score", "exit_layer")
outputs = [http.InferRequestedOutput(name, binary_data=BINARY) for name in names] if REQUESTED else None
reply = client.infer("model", [inputs], outputs=outputs, model_version="1")
label = [value.decode() if isinstance(value, bytes) else value for value in reply.as_numpy("label")]
assert len(reply.as_numpy("exit_layer")) == len(texts)
print(json.dumps(list(zip(label, reply.as_numpy("score").tolist()))))
"""
NODE = """
import { readFileSync } from "node:fs";
import { InferenceClient } from "@huggingface/inference";
const [url, file] = process.argv.slice(2);
const client = new InferenceClient("", { endpointUrl: url });
const best = [];
for (const inputs of JSON.parse(readFileSync(file, "utf8"))) {
  const [first] = await client.textClassification({ inputs, parameters: { top_k: 1 } });
  best.push([first.label, first.score]);
}
console.log(JSON.stringify(best));
"""


def install(folder: Path) -> Path:
    """Install the clients; return a Python interpreter that has them."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PYTHON_CLIENTS], check=True)
    if not (folder / "node_modules").exists():
        npm = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder)]
        subprocess.run([*npm, *NODE_CLIENTS], check=True)
    return python


def programs(folder: Path, python: Path) -> dict[str, list[str]]:
    """Return the command of every client."""
    script = folder / "client.mjs"
    script.write_text(NODE)
    commands = {"huggingface_hub": [sys.executable, "-c", HUB], "@huggingface/inference": ["node", str(script)]}
    for binary in (False, True):
        code = TRITON.replace("BINARY", str(binary))
        name = f"tritonclient, {'binary' if binary else 'JSON'}"
        commands[name] = [str(python), "-c", code.replace("REQUESTED", "True")]
    commands["tritonclient, binary by default"] = [
        str(python),
        "-c",
        TRITON.replace("BINARY", "True").replace("REQUESTED", "False"),
    ]
    return commands | {"kserve": [str(python), "-c", KSERVE]}


def predict(model: str, texts: list[str], folder: Path) -> list[tuple[str, float]]:
    """Return the labels and scores of `offramp predict`."""
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    output = folder / "predictions.jsonl"
    command = [sys.executable, "-m", "offramp", "predict", model, str(folder / "texts.txt"), "--output", str(output)]
    subprocess.run([*command, "--overwrite"], check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return [(row["label"], row["score"]) for row in rows]


def compare(replies: list[Any], expected: list[tuple[str, float]]) -> dict[str, Any]:
    """Return how many texts have the same label, and the largest difference of scores."""
    same = sum(label == expected_label for (label, _), (expected_label, _) in zip(replies, expected, strict=True))
    difference = max(
        abs(score - expected_score) for (_, score), (_, expected_score) in zip(replies, expected, strict=True)
    )
    return {"texts": len(expected), "same_labels": same, "largest_difference": difference}


def main() -> None:
    """Run all clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "offramp-clients")
    args = parser.parse_args()
    python = install(args.work)
    texts = [line for line in args.texts.read_text().splitlines() if line.strip()][: args.rows]
    (args.work / "texts.json").write_text(json.dumps(texts))
    expected = predict(args.model, texts, args.work)
    results: dict[str, Any] = {"date": f"{date.today()}", "cpu": cpu_name(), "clients": {}}
    command = [sys.executable, "-m", "offramp", "serve", args.model, "--port", "0", "--name", "model"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        match = re.search(r"http://\S+:\d+", server.stdout.readline() if server.stdout else "")
        assert match is not None, "the server did not start"
        url = match[0]
        wait = ["curl", "--silent", "--fail", "--retry", "40", "--retry-all-errors", "--retry-delay", "1"]
        subprocess.run([*wait, f"{url}/ready"], check=True, stdout=subprocess.DEVNULL)
        for name, client in programs(args.work, python).items():
            run = subprocess.run([*client, url, str(args.work / "texts.json")], check=True, stdout=subprocess.PIPE)
            results["clients"][name] = compare(json.loads(run.stdout), expected)
            print(f"{name}: {json.dumps(results['clients'][name])}", flush=True)
        fuzz = [str(python.parent / "st"), "run", f"{url}/openapi.json", "--checks", CHECKS, "--max-examples", "100"]
        subprocess.run([*fuzz, "--phases", "coverage,fuzzing"], check=True)
        results["schemathesis"] = "no finding"
    finally:
        server.terminate()
        server.wait()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for name, client_results in results["clients"].items():
        assert client_results["same_labels"] == len(texts), name
        assert client_results["largest_difference"] <= TOLERANCE, name


if __name__ == "__main__":
    main()
