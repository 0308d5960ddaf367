"""What a result was measured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from rudder_hf.runtime import environment
from rudder_hf.runtime.environment import Process, process_device, this_process


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


def test_processes_are_known_by_the_environment() -> None:
    assert this_process({}) == Process(0, 1, 0)
    assert this_process({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == Process(5, 8, 1)
    for wrong in ({"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x", "WORLD_SIZE": "2"}):
        with pytest.raises(ValueError, match="RANK"):
            this_process(wrong)
    assert process_device("cuda", Process(5, 8, 1)) == "cuda:1"
    assert process_device("cuda", Process()) == "cuda"
    assert process_device("cpu", Process(1, 2, 1)) == "cpu"
