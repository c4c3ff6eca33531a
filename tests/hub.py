"""A fake of the Hugging Face Hub on loopback, written for these tests: repositories with commits.

It speaks as much of the protocol as ``huggingface_hub`` needs for files, model cards and downloads. Uploads are inline.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_API = re.compile(
    r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info|preupload|commit)/([^/]+)(?:/(.*))?)?"
)
_RESOLVE = re.compile(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.*)")


class Repository:
    """Files and commits of one repository.

    Attributes:
        files: Content by path.
        commits: Messages, oldest first.
        before: Called before each commit is looked at; tests let somebody else commit there.
        token: Token without which the repository is not found; None if it is public.
    """

    token: str | None = None

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.commits = ["initial commit"]
        self.before: Callable[[], None] = lambda: None
        self.lock = threading.Lock()

    @property
    def head(self) -> str:
        return hashlib.sha1(str(len(self.commits)).encode()).hexdigest()

    def info(self, path: str) -> dict[str, Any]:
        data = self.files[path]
        return {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": path}

    def below(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        prefix = f"{folder}/" if folder else ""
        result: dict[str, dict[str, Any]] = {}
        for path in sorted(self.files):
            if path.startswith(prefix):
                parts = path.removeprefix(prefix).split("/")
                for depth in range(1, len(parts)):
                    if recursive or depth == 1:
                        name = prefix + "/".join(parts[:depth])
                        result[name] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
                if recursive or len(parts) == 1:
                    result[path] = self.info(path)
        return list(result.values())

    def commit(self, lines: list[dict[str, Any]]) -> bool:
        """Apply a commit; False if it should follow another one than the last."""
        header, *operations = lines
        self.before()
        with self.lock:
            if header["value"].get("parentCommit", self.head) != self.head:
                return False
            for operation in operations:
                if operation["key"] == "file":
                    self.files[operation["value"]["path"]] = base64.b64decode(operation["value"]["content"])
                elif operation["key"] == "deletedFile":
                    del self.files[operation["value"]["path"]]
            self.commits.append(header["value"]["summary"])
        return True


@contextmanager
def hub(**repositories: Repository) -> Iterator[str]:
    """Serve repositories by what follows ``user/``; give the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Otherwise a body, which follows its head, waits 40 ms for the client's acknowledgement.
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def answer(self, value: Any, status: int = 200, **headers: str) -> None:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, text in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), text)
            self.end_headers()
            self.wfile.write(data)

        def missing(self, what: str) -> None:
            self.answer({"error": what}, 404, X_Error_Code=what)

        def repository(self, name: str) -> Repository | None:
            """Return the repository of a ``user/name``, if it exists and the client may see it."""
            result = repositories.get(name.rpartition("/")[2])
            if result is None or result.token is None:
                return result
            return result if self.headers.get("Authorization") == f"Bearer {result.token}" else None

        def do_HEAD(self) -> None:
            """Answer as the Hub does to a client that is going to download a file into its cache."""
            resolve = _RESOLVE.fullmatch(urlsplit(self.path).path)
            result = self.repository(resolve[1]) if resolve else None
            data = result.files.get(unquote(resolve[3])) if resolve and result else None
            if result is None or data is None:
                code = "RepoNotFound" if result is None else "EntryNotFound"
                commit = {} if result is None else {"X_Repo_Commit": result.head}
                self.answer(b"", 404, X_Error_Code=code, **commit)
                return
            etag = hashlib.sha1(data).hexdigest()
            self.send_response(200)
            for name, text in {
                "Content-Length": len(data),
                "ETag": f'"{etag}"',
                "X-Repo-Commit": result.head,
            }.items():
                self.send_header(name, str(text))
            self.end_headers()

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            api, resolve = _API.fullmatch(url.path), _RESOLVE.fullmatch(url.path)
            result = self.repository((api or resolve or [None, "", ""])[2 if api else 1])
            if result is None:
                self.missing("RepoNotFound")
            elif api and api[3] == "tree":
                listed = result.below(
                    unquote(api[5] or ""),
                    parse_qs(url.query).get("recursive", ["false"])[0].lower() == "true",
                )
                self.answer(listed) if listed else self.missing("EntryNotFound")
            elif api:
                self.answer({"id": api[2], "sha": result.head, "siblings": [], "private": False, "tags": []})
            elif resolve:
                self.content(result, unquote(resolve[3]))

        def content(self, repository: Repository, path: str) -> None:
            data, request = (
                repository.files.get(path),
                re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")),
            )
            if data is None:
                self.missing("EntryNotFound")
            elif request:
                piece = data[int(request[1]) : int(request[2]) + 1]
                self.answer(
                    piece,
                    206,
                    Content_Range=f"bytes {request[1]}-{int(request[1]) + len(piece) - 1}/{len(data)}",
                )
            else:
                self.answer(data)

        def do_POST(self) -> None:
            body = (
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if "Content-Length" in self.headers
                else self.chunks()
            )
            if urlsplit(self.path).path == "/api/validate-yaml":
                self.validate(json.loads(body)["content"])
                return
            api = _API.fullmatch(urlsplit(self.path).path)
            result = self.repository(api[2]) if api else None
            above = f"https://huggingface.co{'/datasets' if api and api[1] == 'datasets' else ''}"
            if result is None or api is None:
                self.missing("RepoNotFound")
            elif api[3] == "paths-info":
                paths = parse_qs(body.decode()).get("paths", [])
                self.answer([result.info(path) for path in paths if path in result.files])
            elif api[3] == "preupload":
                files = json.loads(body)["files"]
                self.answer(
                    {
                        "files": [
                            {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                            for file in files
                        ]
                    }
                )
            elif result.commit([json.loads(line) for line in body.splitlines()]):
                self.answer({"commitUrl": f"{above}/{api[2]}/commit/{result.head}", "commitOid": result.head})
            else:
                self.answer({"error": "A commit has happened since. Please refresh and try again."}, 412)

        def validate(self, card: str) -> None:
            """Refuse metadata that is no YAML mapping, or has a license that the Hub does not know."""
            from huggingface_hub import ModelCard

            try:
                known = ModelCard(card).data.license in (None, "other", "apache-2.0", "mit")
                errors = [] if known else [{"message": '"license" must be one of [apache-2.0, mit, ...]'}]
            except Exception as error:
                errors = [{"message": str(error)}]
            self.answer({"errors": errors, "warnings": []}, 400 if errors else 200)

        def chunks(self) -> bytes:
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
