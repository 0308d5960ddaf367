"""The synthetic scenes: exact annotations, disjoint splits, a grammar that parses, balanced questions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rudder_hf.scenes import captions, images
from rudder_hf.scenes.images import SPLITS, split_scenes, train_scene
from rudder_hf.scenes.world import OBJECT_NAMES
from tools.train_scenes.card import HASHES, data_hash, place
from tools.train_scenes.coco import write_split
from tools.train_scenes.drift import dense_scene


def test_splits_are_disjoint_and_training_never_shows_what_is_held_out():
    seeds = {split: {s.seed for s in split_scenes(split)} for split in SPLITS}
    seeds["train"] = {make(run, n).seed for run in (0, 1, 2) for n in range(50) for make in (train_scene, dense_scene)}
    assert sum(map(len, seeds.values())) == len(set().union(*seeds.values()))
    for number in range(300):
        scene = train_scene(0, number)
        assert scene.variant in images.TRAIN_VARIANTS
        for thing in scene.things:
            assert thing.style in images.TRAIN_STYLES
            assert thing.glyph in images.glyph_ids(OBJECT_NAMES.index(thing.name), held_out=False)
    assert any(t.style in images.HELD_OUT_STYLES for s in split_scenes("evaluation") for t in s.things)


def test_images_are_the_shipped_ones_bit_for_bit():
    shipped = json.loads(HASHES.read_text())
    assert set(SPLITS) < set(shipped)
    for split in SPLITS:
        assert data_hash(split_scenes(split), split) == shipped[split], split
    with pytest.raises(ValueError, match="calibration"):
        split_scenes("validation")


def test_coco_files_agree_with_the_scenes(tmp_path: Path):
    scenes = split_scenes("evaluation")[:5]
    folder = write_split(tmp_path, "evaluation", scenes)
    instances = json.loads((tmp_path / "annotations" / "instances_evaluation.json").read_text())
    named = {c["id"]: c["name"] for c in instances["categories"]}
    for scene, image in zip(scenes, instances["images"], strict=True):
        assert (folder / image["file_name"]).is_file()
        rows = [a for a in instances["annotations"] if a["image_id"] == image["id"]]
        assert [named[a["category_id"]] for a in rows] == list(scene.names)
        assert all(a["area"] == a["bbox"][2] * a["bbox"][3] and a["iscrowd"] == 0 for a in rows)
    texts = json.loads((tmp_path / "annotations" / "captions_evaluation.json").read_text())["annotations"]
    for scene in scenes:
        for row in (t for t in texts if t["image_id"] == scene.seed):
            assert set(captions.named_categories(row["caption"])) <= set(scene.names)


def test_captions_are_true_and_their_length_says_nothing_about_the_scene():
    random = np.random.RandomState(0)
    scenes = split_scenes("calibration")
    counts = [len(set(scene.names)) for scene in scenes]
    assert set(counts) == set(range(captions.OBJECTS, 10))
    assert sum(count > captions.OBJECTS for count in counts) > 0.7 * len(counts)
    for scene in scenes[:50]:
        named = captions.named_categories(captions.detailed_caption(scene, random))
        assert len(named) == len(set(named)) == captions.OBJECTS
        assert set(named) <= set(scene.names)
        everything = captions.named_categories(captions.detailed_caption(scene, random, len(scene.names)))
        assert sorted(everything) == sorted(scene.names)


def test_captions_name_their_place_and_say_nothing_of_positions():
    random = np.random.RandomState(0)
    for scene in split_scenes("calibration")[:50]:
        for text in (captions.detailed_caption(scene, random), captions.brief_caption(scene, random)):
            assert place(text) == scene.place
    assert place("I can see a cat.") is None
    position = "left right top bottom middle center above below under over behind front near next beside between"
    words = " ".join((*captions.OPENINGS, *captions.SENTENCES, *captions.FILLERS)).lower().replace(".", "").split()
    assert not set(position.split()) & set(words)
