"""The Hub's HTTP interface, as far as pushing and loading models needs it, in a thread of this process.

    with LocalHub(folder) as hub:
        ...  # processes started with HF_ENDPOINT=hub.url speak to it

There are no large files (LFS). Every request is recorded in `hub.requests`. `hub.fault` makes it ill: "unavailable"
answers 503, "silent" answers nothing, "dropped" hangs up on a commit.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from .store import Commit, Repo, Store

SILENCE = 60.0
# The tokens of two users; without one only public repositories can be read.
WRITER, READER = "hf_writer", "hf_reader"
ROLES = {WRITER: "write", READER: "read"}


@dataclass(frozen=True)
class Request:
    """One request, with the status that was answered."""

    method: str
    path: str
    status: int


class Refusal(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str, code: str | None = None, body: Any = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.body = {"error": message} if body is None else body


class LocalHub:
    """A Hub on a free port of this machine.

    Args:
        folder: Where content is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.requests: list[Request] = []
        self.fault: str | None = None
        self.lock = threading.RLock()
        self._released = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> LocalHub:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Keep a client waiting until it gives up or the Hub closes."""
        self._released.wait(SILENCE)

    def counted(self) -> list[Request]:
        """The requests since the last call."""
        with self.lock:
            taken, self.requests = self.requests, []
        return taken


class _Handler(BaseHTTPRequestHandler):
    """Routes of the Hub."""

    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    # Answering

    def do_GET(self) -> None:
        """Answer a request of any kind."""
        method = self.command
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        parts = urlsplit(self.path)
        self.queries = parse_qs(parts.query)
        self.query = {name: values[-1] for name, values in self.queries.items()}
        if self.hub.fault == "silent":
            self.hub.wait()
            self.close_connection = True
            return
        if self.hub.fault == "dropped" and "/commit/" in parts.path:
            self._record(method, parts.path, 0)
            self.close_connection = True
            return
        try:
            if self.hub.fault == "unavailable":
                raise Refusal(503, "Service unavailable")
            for verb, pattern, action in ROUTES:
                match = re.fullmatch(pattern, parts.path)
                if match and verb == method:
                    with self.hub.lock:
                        answer = action(self, *(unquote(group) for group in match.groups()))
                    break
            else:
                raise Refusal(404, f"This Hub does not know {method} {parts.path}")
        except Refusal as refusal:
            headers = {"X-Error-Message": refusal.message}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            answer = (refusal.status, headers, json.dumps(refusal.body).encode())
        self._record(method, parts.path, answer[0])
        self._send(method, *answer)

    do_HEAD = do_POST = do_GET

    def _record(self, method: str, path: str, status: int) -> None:
        with self.hub.lock:
            self.hub.requests.append(Request(method, unquote(path), status))

    def _send(self, method: str, status: int, headers: dict[str, str], content: bytes) -> None:
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if method != "HEAD":
                self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # Who asks

    def role(self) -> str | None:
        given = self.headers.get("Authorization")
        if given is None:
            return None
        role = ROLES.get(given.removeprefix("Bearer "))
        if role is None:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return role

    def readable(self, name: str) -> Repo:
        """A repository that the caller may see. A private one does not exist for strangers."""
        role = self.role()
        repo = self.hub.store.repos.get(name)
        if repo is None or (repo.private and role is None):
            raise Refusal(401 if role is None else 404, "Repository not found", "RepoNotFound")
        return repo

    def writable(self, name: str) -> Repo:
        self.need_write()
        return self.readable(name)

    def need_write(self) -> None:
        role = self.role()
        if role is None:
            raise Refusal(401, "Invalid username or password.")
        if role != "write":
            raise Refusal(403, "Forbidden: you must use a write token to upload to a repository.")

    def at(self, repo: Repo, revision: str) -> Commit:
        commit = repo.resolve(revision)
        if commit is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def json(self) -> dict[str, Any]:
        return json.loads(self.body or b"{}")

    # Routes

    def validate_yaml(self) -> Any:
        return _ok({"errors": [], "warnings": []})

    def create_repo(self) -> Any:
        self.need_write()
        asked = self.json()
        name = f"{asked.get('organization') or 'org'}/{asked['name']}"
        answer = {"url": f"{self.hub.url}/{name}", "name": name, "id": name}
        if name in self.hub.store.repos:
            raise Refusal(409, "You already created this model repo", body={**answer, "error": "exists"})
        self.hub.store.create(name, asked.get("visibility") == "private")
        return _ok(answer)

    def info(self, name: str, revision: str = "main") -> Any:
        repo = self.readable(name)
        commit = self.at(repo, revision)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        return _ok({"id": name, "sha": commit.sha, "private": repo.private, "siblings": siblings})

    def listing(self) -> Any:
        """Repositories with all of the tags asked for, which come from their cards; newest first."""
        if self.query.get("sort") != "lastModified":
            raise Refusal(400, "This Hub sorts by lastModified only")
        found: list[dict[str, Any]] = []
        for repo in reversed(self.hub.store.repos.values()):
            if repo.private and self.role() is None:
                continue
            commit = self.at(repo, "main")
            card = self.hub.store.read(commit.files["README.md"]).decode() if "README.md" in commit.files else ""
            match = re.match(r"^---\n(.*?)\n---\n", card, re.DOTALL)
            data = yaml.safe_load(match.group(1)) if match else {}
            tags = {*data.get("tags", []), f"base_model:{data.get('base_model')}"}
            if tags.issuperset(self.queries["filter"]):
                changed = f"2026-01-{28 - len(found):02}T00:00:00.000Z"
                found.append(
                    {"id": repo.name, "sha": commit.sha, "downloads": repo.downloads, "lastModified": changed}
                )
        return _ok(found[: int(self.query["limit"])])

    def preupload(self, name: str, revision: str) -> Any:
        repo = self.writable(name)
        files = self.at(repo, revision).files
        paths = [file["path"] for file in self.json()["files"]]
        plain = {"uploadMode": "regular", "shouldIgnore": False}
        return _ok({"files": [{"path": path, "oid": files.get(path), **plain} for path in paths]})

    def commit(self, name: str, revision: str) -> Any:
        repo = self.writable(name)
        start = self.at(repo, revision)
        ref = f"refs/heads/{revision}"
        if "create_pr" in self.query:
            number = 1 + sum(known.startswith("refs/pr/") for known in repo.refs)
            ref = f"refs/pr/{number}"
        elif revision in repo.refs:
            ref = revision
        elif ref not in repo.refs:
            raise Refusal(400, f"{revision} is no branch")
        files, title = dict(start.files), ""
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                title = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = self.hub.store.keep(base64.b64decode(value["content"]))
            elif entry["key"] == "deletedFile":
                files.pop(value["path"], None)
            else:
                raise Refusal(501, f"This Hub does not take {entry['key']!r} in a commit")
        if "create_pr" in self.query:
            repo.refs[ref] = start.sha
        made = repo.commit(ref, files, title)
        answer = {"success": True, "commitOid": made.sha, "commitUrl": f"{self.hub.url}/{name}/commit/{made.sha}"}
        if "create_pr" in self.query:
            answer["pullRequestUrl"] = f"{self.hub.url}/{name}/discussions/{ref.removeprefix('refs/pr/')}"
        return _ok(answer)

    def tree(self, name: str, revision: str, folder: str = "") -> Any:
        commit = self.at(self.readable(name), revision)
        deep = self.query.get("recursive", "false").lower() == "true"
        entries = [
            {"type": "file", "path": path, "oid": oid, "size": len(self.hub.store.read(oid))}
            for path, oid in sorted(commit.files.items())
            if (path.startswith(f"{folder}/") if folder else deep or "/" not in path)
        ]
        if folder and not entries:
            raise Refusal(404, f"{folder} does not exist", "EntryNotFound")
        return _ok(entries)

    def branch(self, name: str, branch: str) -> Any:
        repo = self.writable(name)
        if f"refs/heads/{branch}" in repo.refs:
            raise Refusal(409, "Reference already exists")
        repo.refs[f"refs/heads/{branch}"] = self.at(repo, self.json().get("startingPoint", "main")).sha
        return _ok({})

    def resolve(self, name: str, revision: str, path: str) -> Any:
        commit = self.at(self.readable(name), revision)
        headers = {"X-Repo-Commit": commit.sha, "Content-Type": "application/octet-stream"}
        if path not in commit.files:
            refusal = Refusal(404, f"{path} does not exist", "EntryNotFound")
            headers |= {"X-Error-Message": refusal.message, "X-Error-Code": "EntryNotFound"}
            return 404, headers, json.dumps(refusal.body).encode()
        content = self.hub.store.read(commit.files[path])
        headers["ETag"] = f'"{commit.files[path]}"'
        return 200, headers, content


def _ok(body: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(body).encode()


_REPO = r"([^/]+/[^/]+)"
_MODELS = rf"/api/models/{_REPO}"
ROUTES: list[tuple[str, str, Callable[..., Any]]] = [
    ("POST", "/api/validate-yaml", _Handler.validate_yaml),
    ("POST", "/api/repos/create", _Handler.create_repo),
    ("GET", "/api/models", _Handler.listing),
    ("GET", _MODELS, _Handler.info),
    ("GET", "/api/models/([^/]+)", _Handler.info),  # nobody's, unless it has a namespace
    ("GET", rf"{_MODELS}/revision/([^/]+)", _Handler.info),
    ("POST", rf"{_MODELS}/preupload/([^/]+)", _Handler.preupload),
    ("POST", rf"{_MODELS}/commit/([^/]+)", _Handler.commit),
    ("GET", rf"{_MODELS}/tree/([^/]+)", _Handler.tree),
    ("GET", rf"{_MODELS}/tree/([^/]+)/(.+)", _Handler.tree),
    ("POST", rf"{_MODELS}/branch/([^/]+)", _Handler.branch),
    ("GET", rf"/{_REPO}/resolve/([^/]+)/(.+)", _Handler.resolve),
    ("HEAD", rf"/{_REPO}/resolve/([^/]+)/(.+)", _Handler.resolve),
]
