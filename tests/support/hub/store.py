"""What a Hub keeps: repositories with commits, branches, tags and pull requests; files as blobs in a folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path


def git_oid(content: bytes) -> str:
    """The name that git gives to a file's content, which the client compares to skip files without change."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class Commit:
    """One state of a repository."""

    sha: str
    files: dict[str, str]
    """Path -> oid of the content."""
    title: str


@dataclass
class Repo:
    """One model repository."""

    name: str
    private: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    downloads: int = 0
    refs: dict[str, str] = field(default_factory=dict)
    """`refs/heads/main`, `refs/tags/v1`, `refs/pr/1` -> sha."""

    def resolve(self, revision: str) -> Commit | None:
        """The commit that a branch, tag, pull request or hash names."""
        for ref in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
            if ref in self.refs:
                return self.commits[self.refs[ref]]
        return self.commits.get(revision)

    def commit(self, ref: str, files: dict[str, str], title: str) -> Commit:
        """Move a ref on to a new commit with these files."""
        parent = self.refs.get(ref)
        seed = json.dumps([self.name, parent, sorted(files.items()), title, len(self.commits)])
        sha = hashlib.sha1(seed.encode()).hexdigest()
        commit = Commit(sha, dict(files), title)
        self.commits[sha] = commit
        self.refs[ref] = sha
        return commit


class Store:
    """All repositories of a Hub."""

    def __init__(self, folder: Path) -> None:
        self.blobs = folder / "blobs"
        self.blobs.mkdir(parents=True)
        self.repos: dict[str, Repo] = {}

    def keep(self, content: bytes) -> str:
        """Store content and return its oid."""
        oid = git_oid(content)
        (self.blobs / oid).write_bytes(content)
        return oid

    def read(self, oid: str) -> bytes:
        """Content by its oid."""
        return (self.blobs / oid).read_bytes()

    def create(self, name: str, private: bool = False) -> Repo:
        """A new repository with its first commit, as the Hub makes it."""
        repo = self.repos[name] = Repo(name, private)
        repo.commit("refs/heads/main", {".gitattributes": self.keep(b"")}, "initial commit")
        return repo

    def add(self, name: str, folder: Path, title: str = "upload") -> Commit:
        """Put a folder into a repository, as if its owner had pushed it; the repository is made if need be."""
        repo = self.repos.get(name) or self.create(name)
        files = dict(repo.commits[repo.refs["refs/heads/main"]].files)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                files[path.relative_to(folder).as_posix()] = self.keep(path.read_bytes())
        return repo.commit("refs/heads/main", files, title)

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        """The files of a repository at a revision."""
        commit = self.repos[name].resolve(revision)
        assert commit is not None
        return {path: self.read(oid) for path, oid in commit.files.items()}
