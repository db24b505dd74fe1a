"""Third-party clients against a real server: KServe and Triton (Open Inference Protocol), curl, schemathesis.

    python benchmarks/clients.py MODEL [--work DIR]

The clients are installed from PyPI into a separate environment (WORK, by default a temporary folder). The exit code is
1 if a client fails, or if schemathesis finds a 5xx response or one that does not match the OpenAPI schema.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CLIENTS = ["schemathesis==4.32.5", "kserve==0.21.0", "tritonclient[http]==2.73.0"]
CHECKS = (
    "not_a_server_error,response_schema_conformance,content_type_conformance,status_code_conformance,"
    "response_headers_conformance"
)
TEXTS = ["a good film", "the plot was not very good"]

KSERVE = """
import asyncio, sys
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
async def main(url, name):
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=1, timeout=30))
    assert await client.is_server_ready(url) and await client.is_model_ready(url, name)
    request = InferRequest(model_name=name, infer_inputs=[InferInput("text", [2], "BYTES", data=TEXTS)])
    print([(output.name, output.data) for output in (await client.infer(url, request, model_name=name)).outputs])
asyncio.run(main(*sys.argv[1:]))
"""
TRITON = """
import sys
import numpy as np
from tritonclient import http
url, name = sys.argv[1:]
client = http.InferenceServerClient(url.removeprefix("http://"))
assert client.is_server_live() and client.is_model_ready(name)
inputs = http.InferInput("text", [2], "BYTES")
inputs.set_data_from_numpy(np.array(TEXTS, dtype=object), binary_data=False)
names = ("label", "score", "exit_layer")
outputs = [http.InferRequestedOutput(output, binary_data=False) for output in names]
response = client.infer(name, [inputs], outputs=outputs)
print([(output, response.as_numpy(output).tolist()) for output in names])
"""
ROUTES = {
    "/": {"inputs": TEXTS},
    "/predict": {"inputs": TEXTS[0]},
    "/classify": {"input": TEXTS},
    "/v2/models/{name}/infer": {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": TEXTS}]},
}


def environment(folder: Path) -> Path:
    """Return a Python interpreter with the clients installed."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *CLIENTS], check=True)
    return python


def main() -> None:
    """Run all clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "offramp-clients")
    args = parser.parse_args()
    python = environment(args.work)
    command = [sys.executable, "-m", "offramp", "serve", args.model, "--port", "0", "--name", "model"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        match = re.search(r"http://\S+:\d+", server.stdout.readline() if server.stdout else "")
        assert match is not None, "the server did not start"
        url = match[0]
        subprocess.run(["curl", "--silent", "--retry", "20", "--retry-all-errors", f"{url}/ready"], check=True)
        print()
        for route, body in ROUTES.items():
            address = url + route.format(name="model")
            subprocess.run(["curl", "--silent", "--fail", address, "--data", json.dumps(body)], check=True)
            print()
        for code in (KSERVE, TRITON):
            subprocess.run([str(python), "-c", f"TEXTS = {TEXTS!r}\n{code}", url, "model"], check=True)
        fuzz = [str(python.parent / "st"), "run", f"{url}/openapi.json", "--checks", CHECKS, "--max-examples", "300"]
        subprocess.run([*fuzz, "--phases", "coverage,fuzzing"], check=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
