"""What a result was measured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from rudder_hf.runtime import environment
from rudder_hf.runtime.environment import Process, process_device, this_process

FILES = {
    "core/a.py": b"x = 1\ny = 2\n",
    "core/deep/b.py": b"z = 3\n",
    "core/notes.md": b"text",
    "other/c.py": b"c = 4\n",
}


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        # Line endings, other kinds of files and other folders do not count.
        ({"core/a.py": b"x = 1\r\ny = 2\r\n", "core/notes.md": b"more", "third/d.py": b""}, True),
        ({"core/a.py": b"x = 1\ny = 3\n"}, False),
        ({"core/deep/b.py": b"z = 4\n"}, False),
        ({"core/new.py": b""}, False),
        ({"other/c.py": b"\n"}, False),
    ],
)
def test_code_digest_is_of_the_sources_alone(
    changed: dict[str, bytes], same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "runtime" / "environment.py"))
    digests = []
    for files in (FILES, changed):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
        digests.append(environment.code_digest("core", "other"))
        assert environment.code_digest("other", "core") == digests[-1]
    assert len(bytes.fromhex(digests[0])) == 8
    assert (digests[0] == digests[1]) == same
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
