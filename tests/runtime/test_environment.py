"""What a result was measured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from rudder_hf.runtime import environment


def package(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    """Make `folder` the package that digests are of."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    monkeypatch.setattr(environment, "__file__", str(folder / "runtime" / "environment.py"))


FILES = {
    "core/a.py": b"x = 1\ny = 2\n",
    "core/deep/b.py": b"z = 3\n",
    "core/notes.md": b"text",
    "other/c.py": b"c = 4\n",
}


def test_code_digest_is_of_the_sources_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, FILES)
    first = environment.code_digest("core", "other")
    assert len(bytes.fromhex(first)) == 8
    assert environment.code_digest("other", "core") == first
    # Line endings, other kinds of files and other folders do not count.
    package(tmp_path, monkeypatch, {"core/a.py": b"x = 1\r\ny = 2\r\n", "core/notes.md": b"more", "third/d.py": b""})
    assert environment.code_digest("core", "other") == first


@pytest.mark.parametrize(
    "changed",
    [{"core/a.py": b"x = 1\ny = 3\n"}, {"core/deep/b.py": b"z = 4\n"}, {"core/new.py": b""}, {"other/c.py": b"\n"}],
)
def test_code_digest_sees_every_change(
    changed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch, FILES)
    first = environment.code_digest("core", "other")
    package(tmp_path, monkeypatch, changed)
    assert environment.code_digest("core", "other") != first


def test_code_digest_refuses_a_folder_without_sources() -> None:
    with pytest.raises(FileNotFoundError, match="no Python source"):
        environment.code_digest("no-such-folder")
