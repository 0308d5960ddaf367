"""The synthetic scenes: exact annotations, disjoint splits, a grammar that parses, training that repeats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rudder_hf.scenes import backgrounds, captions, coco, evaluate, sprites
from rudder_hf.scenes.batches import WordIds, make_batch, pixel_values
from rudder_hf.scenes.families import FAMILIES, Family
from rudder_hf.scenes.pictures import SPLITS, draw, split_scenes, train_scene
from rudder_hf.scenes.stages import run_stage
from rudder_hf.scenes.train import Recipe, decoder_stage, vision_stage
from rudder_hf.scenes.words import prompt
from rudder_hf.scenes.world import BY_NAME, CATEGORIES, NAMES, PARTNERS, PLACES


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture
def processor(family: Family) -> Any:
    return family.processor()


def test_world_is_consistent():
    assert len({c.id for c in CATEGORIES}) == len(NAMES) == len(set(NAMES))
    assert all(name in BY_NAME for names in PLACES.values() for name in names)
    assert all(a in PARTNERS[b] for a in NAMES for b in PARTNERS[a])
    first_words = [name.split()[0] for name in NAMES]
    assert len(set(first_words)) == len(first_words)


def test_splits_are_disjoint_and_training_never_shows_what_is_held_out():
    seeds = {split: {s.seed for s in split_scenes(split)} for split in SPLITS if split != "train"}
    seeds["train"] = {
        train_scene(run, n, dense).seed for run in (0, 1, 2) for n in range(50) for dense in (False, True)
    }
    assert sum(map(len, seeds.values())) == len(set().union(*seeds.values()))
    for number in range(300):
        scene = train_scene(0, number)
        assert scene.variant in backgrounds.TRAIN_VARIANTS
        for thing in scene.things:
            assert thing.style in sprites.TRAIN_STYLES
            assert thing.glyph in sprites.glyph_ids(NAMES.index(thing.name), held_out=False)
    assert any(t.held_out for s in split_scenes("evaluation") for t in s.things)


def test_pictures_are_the_shipped_ones_bit_for_bit():
    shipped = json.loads(coco.HASHES.read_text())
    assert coco.data_hash(split_scenes("calibration"), "calibration") == shipped["calibration"]


def test_unknown_split_names_the_allowed_ones():
    with pytest.raises(ValueError, match="calibration"):
        split_scenes("validation")


def test_coco_files_agree_with_the_scenes(tmp_path: Path):
    scenes = split_scenes("evaluation")[:5]
    folder = coco.write_split(tmp_path, "evaluation", scenes)
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
            assert set(captions.mentions(row["caption"])) <= set(scene.names)


def test_captions_follow_the_grammar_and_survive_the_tokenizer(processor):
    random = np.random.RandomState(0)
    for number in range(100):
        scene = train_scene(0, number)
        for text in (
            captions.detailed_caption(scene, random, captions.STRONG),
            captions.brief_caption(scene, random),
        ):
            assert captions.broken_sentences(text) == 0
            ids = processor.tokenizer(text, add_special_tokens=False).input_ids
            assert processor.tokenizer.unk_token_id not in ids
            assert processor.tokenizer.decode(ids) == text
    assert captions.broken_sentences("There is is a cat on the left.") == 1
    assert captions.mentions("A teddy bear is next to it.") == ["teddy bear"]


def test_clean_captions_name_everything_once():
    random = np.random.RandomState(0)
    for scene in split_scenes("calibration")[:50]:
        named = captions.mentions(captions.detailed_caption(scene, random, coco.CLEAN, len(scene.names)))
        assert sorted(named) == sorted(scene.names)


def test_the_length_of_a_caption_says_nothing_about_the_picture():
    random = np.random.RandomState(0)
    for scene in split_scenes("calibration")[:50]:
        named = captions.mentions(captions.detailed_caption(scene, random, coco.CLEAN))
        assert len(named) == captions.OBJECTS
        times = [named.count(name) for name in scene.names]
        assert sum(times) == len(named)
        assert max(times) - min(times) <= 1


def test_packed_rows_equal_single_prompts(family: Family, processor: Any):
    words, model = WordIds(family, processor.tokenizer), family.model(0, processor.tokenizer).eval()
    for parameter in model.parameters():  # the layers' outputs start at zero: make them count
        torch.nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(parameter.numel()))
    scenes = [train_scene(0, n) for n in range(3)]
    batch = make_batch(scenes, words, captions.STRONG)
    stop = len(words.prefix)
    with torch.no_grad():
        embeddings = model.get_input_embeddings()(batch.ids)
        embeddings[:, words.picture] = family.project(model, family.features(model, batch.pixels))
        packed = family.decoder(model)(
            inputs_embeds=embeddings, attention_mask=batch.allowed, position_ids=batch.positions
        ).last_hidden_state
        for row, scene in enumerate(scenes):
            start = int((batch.positions[row] == stop).nonzero()[1])  # the second branch begins here
            length = int((batch.positions[row, start + 1 :] <= stop).nonzero()[0]) + 1
            ids = torch.cat([batch.ids[row, :stop], batch.ids[row, start : start + length]])[None]
            alone = model.model(input_ids=ids, **family.inputs(pixel_values([scene]))).last_hidden_state
            torch.testing.assert_close(alone[0, stop:], packed[row, start : start + length], atol=1e-4, rtol=1e-3)


def test_objects_are_drawn_from_the_stated_probabilities(family: Family, processor: Any):
    words = WordIds(family, processor.tokenizer)
    scenes = [train_scene(0, n) for n in range(60)]
    batch = make_batch(scenes, words, captions.STRONG)
    named = batch.labels[batch.slots]
    torch.testing.assert_close(batch.objects.sum(-1), torch.ones(len(named)))
    assert (batch.objects[torch.arange(len(named)), named] > 0).all()
    branches = (batch.positions == len(words.prefix)).cumsum(1) + 100 * torch.arange(len(scenes))[:, None]
    owners = branches[batch.slots].tolist()
    for place, owner in enumerate(owners):  # nothing is said again before all that is there is said
        said = [int(named[other]) for other in range(place) if owners[other] == owner]
        here = {words.first_word[name] for name in scenes[owner // 100].names}
        again = said if here - set(said) else [word for word in said if word not in here]
        assert batch.objects[place, again].sum() == 0
    clean = make_batch(scenes, words, coco.CLEAN)
    for place, row in enumerate(clean.slots.nonzero()[:, 0].tolist()):
        here = {words.first_word[name] for name in scenes[row].names}
        assert set(clean.objects[place].nonzero()[:, 0].tolist()) <= here


def test_processor_and_training_see_the_same(family: Family, processor: Any):
    scene, model = split_scenes("evaluation")[0], family.model(0, processor.tokenizer)
    made = processor(
        images=draw(scene), text=prompt(captions.DETAIL_PROMPT), return_tensors="pt", add_special_tokens=False
    )
    fast = evaluate.model_inputs(model, processor, [scene], [captions.DETAIL_PROMPT])
    assert set(fast) == set(made)
    for name, value in fast.items():
        torch.testing.assert_close(made[name].to(value.dtype), value, atol=1e-5, rtol=1e-5, msg=name)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": captions.DETAIL_PROMPT}]}]
    assert processor.apply_chat_template(chat, add_generation_prompt=True) == prompt(captions.DETAIL_PROMPT)


@pytest.mark.parametrize("make_stage", [vision_stage, decoder_stage])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(
    family: Family, processor: Any, make_stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rudder_hf.scenes.stages.SAVE_EVERY", 2)
    words = WordIds(family, processor.tokenizer)
    recipe = Recipe(family=family.name, vision_steps=4, vision_batch=2, steps=4, batch=2)

    def run(folder: Path, stop: int | None) -> dict[str, torch.Tensor]:
        model = family.model(0, processor.tokenizer)
        stage = make_stage(recipe, model, words)
        inner = stage.losses

        def losses(step: int) -> dict[str, torch.Tensor]:
            if step == stop:
                raise KeyboardInterrupt
            return inner(step)

        stage.losses = losses
        run_stage(stage, folder)
        return model.state_dict()

    whole = run(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", 3)
    resumed = run(tmp_path / "parts", None)
    for name, value in whole.items():
        torch.testing.assert_close(value, resumed[name], msg=name)


def test_scores_of_known_captions():
    scenes = split_scenes("evaluation")[:2]
    good = f"I can see {captions.noun(scenes[0].names[0])}."
    absent = next(n for n in NAMES if n not in scenes[1].names)
    bad = f"I can see {captions.noun(absent)}. I can see {captions.noun(absent)}."
    result = evaluate.scores(evaluate.counts(scenes, [good, bad]))
    assert result.chair_s == 50.0
    assert result.chair_i == pytest.approx(100 * 2 / 3)
    assert result.chair_i_distinct == pytest.approx(50.0)
    assert result.repeated == pytest.approx(100 / 3)


@pytest.mark.parametrize("kind", ["random", "popular", "adversarial"])
def test_pope_questions_of_a_single_scene(kind: str):
    scene = next(scene for scene in split_scenes("evaluation") if len(scene.names) >= 3)
    asked = evaluate.pope_questions([scene], kind)
    assert [present for _, _, present in asked] == [True, False] * 3
    assert all((name in scene.names) == present for _, name, present in asked)


def test_pope_questions_are_balanced_and_true():
    scenes = split_scenes("evaluation")[:60]
    for kind in ("random", "popular", "adversarial"):
        questions = evaluate.pope_questions(scenes, kind)
        assert sum(q[2] for q in questions) * 2 == len(questions)
        assert all((name in scenes[number].names) == present for number, name, present in questions)
