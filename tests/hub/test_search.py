"""`rudder search` against a Hub on this machine: what is listed, what is said of it, and what is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rudder_hf import RudderConfig, write_repo
from tests.support.hub import READER, Elsewhere, LocalHub

BASE = "org/searched"
CHANGE = {"left": 0.5, "right": 0.4, "value": -0.1, "low": -0.15, "high": -0.05}
HELD_OUT = {"chair_s": CHANGE, "f1": {**CHANGE, "value": 0.02, "low": 0.01, "high": 0.03}}


@pytest.fixture(scope="module", autouse=True)
def _settings(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> None:
    """From old to new: three that are to be found, one for another model, a private one, and two that lie."""
    home = tmp_path_factory.mktemp("searched")

    def add(name: str, base: str = BASE, record: dict[str, Any] | None = None, **settings: Any) -> Path:
        config = RudderConfig(base_model_name_or_path=base, **settings)
        if record is not None:
            config.calibration = {"model": {"name": base}, "settings": config.settings(), **record}
        write_repo(config, home / name)
        hub.store.add(f"user/{name}", home / name)
        return home / name

    hub.store.create(BASE)
    add("by-hand", layer=3, contrast=0.6)
    add("refused", record={"held_out": HELD_OUT, "refusal": "the interval includes 0"}, layer=4)
    add("calibrated", record={"held_out": HELD_OUT, "held_out_images": [1]}, layer=5, alpha_max=7.5)
    add("other-model", base="org/other")
    hub.store.repos["user/calibrated"].downloads = 12
    add("private")
    hub.store.repos["user/private"].private = True
    (add("broken") / "config.json").write_text('{"layer": "\x1b[31mred", "mode": ' + "[" * 100_000)
    hub.store.add("user/broken", home / "broken")
    (add("elsewhere") / "config.json").write_text((home / "other-model" / "config.json").read_text())
    hub.store.add("user/elsewhere", home / "elsewhere")


def search(elsewhere: Elsewhere, *arguments: str, **env: str) -> Any:
    code = f"from rudder_hf.cli.main import app\napp({['search', *arguments]!r})"
    return elsewhere.run(code, package=True, **{"COLUMNS": "120", **env})


def test_settings_for_a_model_are_listed_newest_first(elsewhere: Elsewhere, hub: LocalHub) -> None:
    hub.counted()
    done = search(elsewhere, BASE, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert [each["repo"] for each in found] == [
        f"user/{n}" for n in ("elsewhere", "broken", "calibrated", "refused", "by-hand")
    ]
    lying, broken, calibrated, refused, by_hand = found
    assert [each["calibrated"] for each in found] == [False, False, True, False, False]
    assert calibrated["settings"] == RudderConfig(layer=5, alpha_max=7.5).settings()
    assert (calibrated["downloads"], calibrated["note"]) == (12, "")
    assert calibrated["chair_s"]["value"] == -0.1
    assert calibrated["f1"]["value"] == 0.02
    assert calibrated["changed"] > refused["changed"] > by_hand["changed"]
    assert "the interval includes 0" in refused["note"]
    assert by_hand["note"] == "without a calibration"
    assert "'org/other'" in lying["note"]
    assert "cannot be read" in broken["note"]
    assert broken["settings"] is lying["settings"] is None
    # One list, one file of each, and nothing that is code.
    asked = [request.path for request in hub.counted()]
    assert asked.count("/api/models") == 1
    assert all(path.endswith("/config.json") for path in asked if path != "/api/models")


def test_the_table_and_its_limits(elsewhere: Elsewhere) -> None:
    lines = search(elsewhere, BASE).out.splitlines()
    assert lines[0].split("  ")[0] == "settings"
    row = next(line for line in lines if line.startswith("user/calibrated"))
    assert "5, 7.5" in row
    assert "-10.0 [-15.0, -5.0], +2.0 [+1.0, +3.0]" in row
    assert "3, 20, contrast 0.6" in "\n".join(lines)
    assert "\x1b" not in "\n".join(lines)
    assert lines[-1] == "Next: rudder generate --model user/calibrated"
    assert "user/elsewhere" in search(elsewhere, BASE, "--limit", "1").out
    assert "user/broken" not in search(elsewhere, BASE, "--limit", "1").out
    assert "user/private" in search(elsewhere, BASE, "--token", READER).out


def test_nothing_found_and_nothing_to_search_for(elsewhere: Elsewhere) -> None:
    none = search(elsewhere, "org/nothing")
    assert none.status == 0
    assert none.out.splitlines()[-1] == "Next: rudder calibrate --model org/nothing --out calibration"
    assert json.loads(search(elsewhere, "org/nothing", "--json").out) == []
    for wrong in ("llava", "a/b/c"):
        done = search(elsewhere, wrong)
        assert done.status == 2
        assert "Give the Hub id" in done.err
