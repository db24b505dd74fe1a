"""A Hugging Face Hub on this machine, as far as one model needs it: create, commit, fetch."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """Keeps the files of one repository in memory."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self.answer({"url": f"{self.server.url}/someone/adaptive", "id": "1", "name": "someone/adaptive"})
        elif self.path.endswith("/preupload/main"):
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif "/commit/" in self.path:
            for line in body.splitlines():
                part = json.loads(line)
                if part["key"] == "file":
                    self.server.files[part["value"]["path"]] = base64.b64decode(part["value"]["content"])
            self.answer({"commitUrl": f"{self.server.url}/someone/adaptive/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.answer({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            _, _, folder = self.path.split("/tree/")[1].split("?")[0].partition("/")
            files = {name: content for name, content in self.server.files.items() if name.startswith(folder)}
            self.answer([{"type": "file", "path": name, "size": len(files[name]), "oid": COMMIT} for name in files])
            return
        if "/resolve/" not in self.path:
            siblings = [{"rfilename": name} for name in self.server.files]
            self.answer({"id": "someone/adaptive", "sha": COMMIT, "siblings": siblings})
            return
        name = self.path.split("/resolve/")[1].split("/", 1)[1].split("?")[0]
        if name not in self.server.files:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, content: dict | list) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def local_hub() -> Iterator[Hub]:
    hub = Hub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
