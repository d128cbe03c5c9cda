"""A Hugging Face hub on this machine: repositories in memory, as far as huggingface_hub's own client publishes, fetches and reads them.

Large files (safetensors) go through LFS and are read by ranges, small ones are in the commit, as on the real one.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class FakeHub:
    """What the hub has, and what it was asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self.ranges: list[str] = []
        """The byte ranges that were asked for."""
        self.url = ""

    def revision(self, name: str) -> str:
        """The commit of a repository: a digest of its content."""
        content = sorted((file, hashlib.sha1(data).hexdigest()) for file, data in self.repositories[name].items())
        return hashlib.sha1(json.dumps(content).encode()).hexdigest()


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """Serve a hub on a free port of 127.0.0.1; HF_ENDPOINT is its `url`."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if name in self.hub.repositories:
                return self._json({"error": "exists", "url": f"{self.hub.url}/{name}"}, 409)
            self.hub.repositories[name] = {".gitattributes": b""}
            self.hub.private[name] = asked.get("visibility") == "private"
            return self._json({"url": f"{self.hub.url}/{name}"})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            uploads = [{**one, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}}} for one in objects]
            return self._json({"transfer": "basic", "objects": uploads})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            files = [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            return self._commit(match[1], [json.loads(line) for line in body.splitlines()])
        return self._json({"error": f"no {path}"}, 404)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.blobs[self.path.rpartition("/")[2]] = data
        self._json({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(/revision/[^/]+)?", path):
            if match[1] not in self.hub.repositories:
                return self._missing()
            revision = self.hub.revision(match[1])
            siblings = [{"rfilename": file} for file in sorted(self.hub.repositories[match[1]])]
            return self._json({"id": match[1], "sha": revision, "siblings": siblings, "private": False, "tags": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?.*", path):
            if match[1] not in self.hub.repositories:
                return self._missing()
            return self._json([_entry(file, data) for file, data in sorted(self.hub.repositories[match[1]].items())])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            data = self.hub.repositories.get(match[1], {}).get(match[3])
            return self._missing() if data is None else self._file(data, self.hub.revision(match[1]))
        return self._json({"error": f"no {path}"}, 404)

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.hub.commits.append(value["summary"])
            elif line["key"] == "file":
                self.hub.repositories[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.hub.repositories[name][value["path"]] = self.hub.blobs[value["oid"]]
        revision = self.hub.revision(name)
        self._json({"success": True, "commitOid": revision, "commitUrl": f"{self.hub.url}/{name}/commit/{revision}", "hookOutput": ""})

    def _file(self, data: bytes, revision: str) -> None:
        status, part, extra = 200, data, {}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            self.hub.ranges.append(asked[0])
            start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            status, part = 206, data[start : end + 1]
            extra = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": revision, "Accept-Ranges": "bytes", **extra}
        self._send(part, status, headers)

    def _missing(self) -> None:
        self._send(b"{}", 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json"})

    def _send(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _entry(file: str, data: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(data).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": file, "oid": oid, "size": len(data)}
    if file.endswith(".safetensors"):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return entry
