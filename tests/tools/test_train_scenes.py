"""The training of the embedded models: packed rows, drawn captions, runs that repeat and go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rudder_hf.scenes import captions, embedded
from rudder_hf.scenes.images import draw, split_scenes, train_scene
from rudder_hf.scenes.world import OBJECT_NAMES
from tools.train_scenes import card
from tools.train_scenes.__main__ import Recipe, decoder_stage, lens_stage, vision_stage
from tools.train_scenes.batches import WordIds, make_batch, pixel_values
from tools.train_scenes.drift import NONE, STRONG, drawn_brief_caption, drifting_caption
from tools.train_scenes.families import FAMILIES, Family
from tools.train_scenes.losses import LENS_WEIGHT, decoder_losses, lens_losses
from tools.train_scenes.stages import run_stage
from tools.train_scenes.tokenizer import prompt


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture
def processor(family: Family) -> Any:
    return family.processor()


def test_packed_rows_equal_single_prompts(family: Family, processor: Any):
    words, model = WordIds(family, processor.tokenizer), family.model(0, processor.tokenizer).eval()
    for parameter in model.parameters():  # the layers' outputs start at zero: make them count
        torch.nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(parameter.numel()))
    scenes = [train_scene(0, n) for n in range(3)]
    batch = make_batch(scenes, words, STRONG)
    stop = len(words.prefix)
    with torch.no_grad():
        embeddings = model.get_input_embeddings()(batch.ids)
        embeddings[:, words.image_span] = family.project(model, family.features(model, batch.pixels))
        packed = family.decoder(model)(
            inputs_embeds=embeddings, attention_mask=batch.mask, position_ids=batch.positions
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
    batch = make_batch(scenes, words, STRONG)
    named = batch.labels[batch.slots]
    torch.testing.assert_close(batch.objects.sum(-1), torch.ones(len(named)))
    assert (batch.objects[torch.arange(len(named)), named] > 0).all()
    branches = (batch.positions == len(words.prefix)).cumsum(1) + 100 * torch.arange(len(scenes))[:, None]
    owners = branches[batch.slots].tolist()
    for place, owner in enumerate(owners):  # nothing is said again
        said = [int(named[other]) for other in range(place) if owners[other] == owner]
        assert batch.objects[place, said].sum() == 0
    clean = make_batch(scenes, words, NONE)
    for place, row in enumerate(clean.slots.nonzero()[:, 0].tolist()):
        here = {words.first_word[name] for name in scenes[row].names}
        assert set(clean.objects[place].nonzero()[:, 0].tolist()) <= here


def test_processor_and_training_see_the_same(family: Family, processor: Any):
    scene, words = split_scenes("evaluation")[0], WordIds(family, processor.tokenizer)
    made = processor(
        images=draw(scene), text=prompt(captions.DETAIL_PROMPT), return_tensors="pt", add_special_tokens=False
    )
    ids = torch.tensor([[*words.prefix, *words.sentence(captions.DETAIL_PROMPT), *words.sentence("ASSISTANT:")]])
    trained_on = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **family.inputs(pixel_values([scene]))}
    assert set(trained_on) == set(made)
    for name, value in trained_on.items():
        torch.testing.assert_close(made[name].to(value.dtype), value, atol=1e-5, rtol=1e-5, msg=name)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": captions.DETAIL_PROMPT}]}]
    assert processor.apply_chat_template(chat, add_generation_prompt=True) == prompt(captions.DETAIL_PROMPT)


def test_lens_losses_average_over_the_layers_that_are_read():
    states = [torch.tensor(float(layer)) for layer in range(1, 13)]
    found = lens_losses(states, patch_loss=lambda state: state, object_loss=lambda state: 10 * state)
    assert found["lens_patch"] == pytest.approx(LENS_WEIGHT * 8)  # layers 4 to 12
    assert found["lens_object"] == pytest.approx(LENS_WEIGHT * 95)  # layers 8 to 11: the last one has its own loss


def test_lens_losses_replace_the_loss_of_the_patches_at_the_output(family: Family, processor: Any):
    words, model = WordIds(family, processor.tokenizer), family.model(0, processor.tokenizer)
    batch = make_batch([train_scene(0, 0)], words, STRONG)
    plain, lens = (decoder_losses(family, model, batch, words, lens=lens) for lens in (False, True))
    assert set(plain) - set(lens) == {"patch"}
    assert set(lens) - set(plain) == {"lens_patch", "lens_object"}
    for name in set(plain) & set(lens):
        torch.testing.assert_close(plain[name], lens[name])
    torch.stack([lens["lens_patch"], lens["lens_object"]]).sum().backward()
    gradients = [layer.self_attn.v_proj.weight.grad for layer in family.decoder(model).layers]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("make_stage", [vision_stage, decoder_stage, lens_stage])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(
    family: Family, processor: Any, make_stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tools.train_scenes.stages.SAVE_EVERY", 2)
    words = WordIds(family, processor.tokenizer)
    recipe = Recipe(family=family.name, vision_steps=4, vision_batch=2, steps=4, batch=2, lens_from=2, lens_steps=4)

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


def test_captions_follow_the_grammar_and_survive_the_tokenizer(processor):
    random = np.random.RandomState(0)
    for number in range(100):
        scene = train_scene(0, number)
        for text in (drifting_caption(scene, random, STRONG).text, drawn_brief_caption(scene, random).text):
            assert captions.broken_sentences(text) == 0
            ids = processor.tokenizer(text, add_special_tokens=False).input_ids
            assert processor.tokenizer.unk_token_id not in ids
            assert processor.tokenizer.decode(ids) == text
    assert captions.broken_sentences("There is is a cat.") == 1
    assert captions.broken_sentences("There is a cat on the left.") == 1
    assert captions.named_categories("A teddy bear is visible.") == ["teddy bear"]


def test_scores_of_known_captions():
    scenes = split_scenes("evaluation")[:2]
    good = f"This is {captions.noun(scenes[0].place)} with {captions.noun(scenes[0].names[0])}."
    absent = next(n for n in OBJECT_NAMES if n not in scenes[1].names)
    bad = f"I can see {captions.noun(absent)}. I can see {captions.noun(absent)}."
    result = card.caption_scores(scenes, [good, bad])
    assert result["chair_s"] == 50.0
    assert result["chair_i"] == pytest.approx(100 * 2 / 3)
    assert result["chair_i_distinct"] == pytest.approx(50.0)
    assert result["repeated"] == pytest.approx(100 / 3)
    assert result["broken"] == 0.0
    assert result["precision"] == pytest.approx(50.0)
    assert result["recall"] == pytest.approx(100 / sum(len(scene.names) for scene in scenes))
    assert result["f1"] == pytest.approx(2 / (1 / result["precision"] + 1 / result["recall"]))
    assert result["false_places"] == 50.0


@pytest.mark.parametrize("name", embedded.names())
def test_the_shipped_cards_are_rendered_from_their_metrics(name: str):
    folder = embedded.folder(name)
    assert card.render(json.loads((folder / "metrics.json").read_text())) == (folder / "README.md").read_text()
