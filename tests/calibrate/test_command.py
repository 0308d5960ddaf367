"""`rudder calibrate`: the planted setting is found and said to be; bad input is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rudder_hf import RudderConfig
from rudder_hf.calibrate.search import describe
from rudder_hf.hub.card import Provenance
from rudder_hf.methods import Method
from tests.support.command import refused, rudder
from tests.support.planting import NEW, planted_folder

IMAGES, CHECKED = 7, 10


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Method]:
    """Images in COCO's layout, and the setting that has to win on them."""
    folder = tmp_path_factory.mktemp("coco") / "data"
    return folder, planted_folder(folder, IMAGES, CHECKED)


def command(tiny_model: Path, data: Path | None, out: Path, *more: str) -> list[str]:
    sizes = ["--limit", str(IMAGES), "--check-limit", str(CHECKED), "--max-new-tokens", str(NEW)]
    grid = ["--layers", "2", "--strengths", "0.5,1.5", "--k", "2,8", "--batch-size", "5", "--device", "cpu"]
    source = [] if data is None else ["--data", str(data)]
    return ["calibrate", "--model", str(tiny_model), *source, "--out", str(out), *sizes, *grid, *more]


def test_the_planted_setting_is_found(tiny_model: Path, annotated: tuple[Path, Method], tmp_path: Path) -> None:
    data, winner = annotated
    result = rudder(*command(tiny_model, data, tmp_path))
    assert result.exit_code == 0, result.output
    assert f"Chosen: {describe(winner)}" in result.stdout
    assert result.stdout.splitlines()[-1] == (
        f"Next: rudder generate --model {tmp_path / 'result-001'}, or rudder push {tmp_path / 'result-001'} ORG/NAME"
    )
    config = RudderConfig.from_pretrained(tmp_path / "result-001")
    assert config.alpha_max == winner.settings()["alpha_max"]
    assert config.calibration is not None
    assert Provenance(config).calibrated, config.calibration["refusal"]


def test_constant_strengths_are_searched(tiny_model: Path, annotated: tuple[Path, Method], tmp_path: Path) -> None:
    """RUDDER-Add, which may or may not beat vanilla here."""
    without_k = [part for part in command(tiny_model, annotated[0], tmp_path) if part not in ("--k", "2,8")]
    result = rudder(*without_k, "--mode", "add")
    assert result.exit_code in (0, 1), result.output
    candidates = (tmp_path / "result-001" / "report.md").read_text().split("## Candidates")[1]
    assert candidates.count("mode='add'") == 2
    assert "k=" not in candidates


def test_nothing_better_than_vanilla_is_a_failure(tiny_model: Path, tmp_path: Path) -> None:
    # No setting keeps a recall above vanilla's own in enough draws of the images.
    more = ["--recall-floor", "1", "--strengths", "0.01"]
    result = rudder(*command(tiny_model, None, tmp_path, *more))
    assert result.exit_code == 1, result.output
    assert "Chosen: nothing" in result.stdout
    assert "Next: more images" in result.stdout
    assert not (tmp_path / "result-001" / "config.json").exists()
    assert (tmp_path / "result-001" / "report.md").is_file()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) <= 8, files
    push = rudder("push", tmp_path / "result-001", "org/name", "--dry-run")
    assert push.exit_code == 2


def test_what_is_not_shown_is_not_called_calibrated(
    tiny_model: Path, annotated: tuple[Path, Method], tmp_path: Path
) -> None:
    """The planted setting is right, but nothing is held out to show it: console, report, config say so."""
    data, winner = annotated
    result = rudder(*command(tiny_model, data, tmp_path, "--check-limit", "0"))
    assert result.exit_code == 0, result.output
    missing = "there were no held-out images to check them on"
    assert f"Chosen: {describe(winner)}" in result.stdout
    assert f"Not called calibrated: {missing}." in result.stdout
    assert f"Not called calibrated: {missing}." in (tmp_path / "result-001" / "report.md").read_text()
    assert not Provenance(RudderConfig.from_pretrained(tmp_path / "result-001")).calibrated


def test_a_dry_run_says_how_long_and_writes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    swept = [part for part in command(tiny_model, None, tmp_path / "out") if part not in ("--layers", "2")]
    result = rudder(*swept, "--dry-run")
    assert result.exit_code == 0, result.output
    # Two candidates at four layers, four at three of them, and vanilla on seven images, and three on ten.
    needed = (2 * 4 + 4 * 3 + 1) * 7 + 3 * 10
    said = (
        f"17 images, 12 settings after a sweep over layers: {needed} answers of about {NEW} tokens, {needed * NEW} in "
    )
    assert said in result.stdout
    assert "Next: the same command without --dry-run" in result.stdout
    assert not (tmp_path / "out").exists()


def test_a_layer_that_is_not_there_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    refused(rudder(*command(tiny_model, None, tmp_path, "--layers", "99")), "has 4 decoder layers")
