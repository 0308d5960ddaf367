"""Which images are chosen with and which are checked with."""

from __future__ import annotations

from pathlib import Path

import pytest

from rudder_hf.calibrate import data_source, find_data, pope_task
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.metrics.errors import InputError


def test_images_to_choose_and_to_check_are_apart() -> None:
    data = find_data(DataOptions(), 20, 30)
    ids = [sample.id for sample in data.choosing], [sample.id for sample in data.checking]
    assert not set(ids[0]) & set(ids[1])
    assert [s.id for s in find_data(DataOptions(), 20, 30).choosing] == ids[0]
    without = find_data(DataOptions(), 20, 30, exclude=ids[0])
    assert not {sample.id for sample in without.choosing + without.checking} & set(ids[0])
    with pytest.raises(InputError, match="lower --limit"):
        find_data(DataOptions(), 400, 10)
    with pytest.raises(InputError, match="is for evaluation"):
        find_data(DataOptions(split="evaluation"), 5, 5)


def test_embedded_scenes_by_name() -> None:
    """Chosen on the calibration scenes, checked on the evaluation scenes."""
    other = data_source(Path("embedded:evaluation"))
    found = find_data(data_source(Path("embedded:calibration")), 4, 3, check_options=other)
    assert {str(s.image_id)[0] for s in found.choosing} == {"1"}
    assert {str(s.image_id)[0] for s in found.checking} == {"2"}
    assert found.record["checked_on"]["split"] == "evaluation"
    assert {s.image_id for s in pope_task(found, limit=2).samples} <= {s.image_id for s in found.checking[:2]}
    with pytest.raises(InputError, match="is for evaluation"):
        find_data(other, 4, 3)
