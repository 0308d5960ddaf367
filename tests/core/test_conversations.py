"""A second turn on a reused cache: CARD pools the prompts of the whole conversation, or a warning says that it cannot.

The expected CARD is computed from the outside: one plain forward of a stock model over the whole conversation, with a
bare hook on the target layer's attention. Steering acts after that attention, so what it adds there is the same.
"""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from rudder_hf import RudderWarning, attach
from tests.support.helpers import (
    NEW,
    OTHER_ROW,
    ROW,
    Listener,
    assert_same,
    direction,
    prompt_updates,
    run,
    settings,
)
from tests.support.zoo import FAMILIES, Family, Row
from tests.support.zoo.batches import token_types

UNREAD = "tokens that RUDDER did not read"


@contextmanager
def no_warning() -> Iterator[None]:
    """RUDDER has nothing to say in this block."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RudderWarning)
        # Which is true of an answer that is cut after its first token, and goes on later.
        warnings.filterwarnings("ignore", "The answer is a single token", RudderWarning)
        yield


@dataclass
class Chat:
    """A conversation with a model: what was said, what the cache holds, and which of it was read as prompt."""

    family: Family
    model: Any
    batch: tuple[Row, ...] = (ROW,)
    cache: Any = None
    ids: Tensor = field(init=False)
    mask: Tensor = field(init=False)
    inputs: dict[str, Any] = field(init=False)
    prompt: Tensor = field(init=False)
    """1 where a position was forwarded as prompt, 0 for padding and for answers."""
    unforwarded: int = 0
    """Number of answer tokens that were emitted but not forwarded yet."""

    def __post_init__(self) -> None:
        self.inputs = self.family.inputs(self.model, self.batch)
        self.ids, self.mask = self.inputs["input_ids"], self.inputs["attention_mask"]
        self.prompt = torch.zeros_like(self.mask[:, :0])

    def say(self, words: int, seed: int = 0) -> None:
        """Append new prompt tokens to what was said so far."""
        new = torch.randint(10, 120, (len(self.ids), words), generator=torch.Generator().manual_seed(seed))
        self.ids = torch.cat([self.ids, new], dim=1)
        self.mask = torch.cat([self.mask, torch.ones_like(new)], dim=1)

    def whole(self) -> dict[str, Any]:
        """The conversation so far as inputs of one stock forward."""
        types = {
            name: token_types(self.ids) for name in ("mm_token_type_ids", "token_type_ids") if name in self.inputs
        }
        return {**self.inputs, **types, "input_ids": self.ids, "attention_mask": self.mask}

    def turn(self, *, only_new: bool = False, **options: Any) -> Any:
        """Let the model answer; from the second time on without the picture, which the cache holds."""
        cached = 0 if self.cache is None else int(self.cache.get_seq_length())
        arguments = self.whole()
        if cached:
            arguments = {name: value for name, value in arguments.items() if value.shape[:2] == self.ids.shape}
            if only_new:
                arguments["input_ids"] = self.ids[:, cached:]
        if self.cache is not None:
            options["past_key_values"] = self.cache
        output = run(self.model, arguments, **options)
        # The last token of the previous answer is forwarded with the new prompt, but is no prompt token. If the answer
        # was taken back, nothing tells.
        forwarded = self.mask[:, cached:].clone()
        forwarded[:, : self.unforwarded] = 0
        self.prompt = torch.cat([self.prompt, forwarded], dim=1)
        answer = output.sequences[:, -NEW:]
        self.prompt = torch.cat([self.prompt, torch.zeros_like(answer[:, 1:])], dim=1)
        self.ids = torch.cat([self.ids, answer], dim=1)
        self.mask = torch.cat([self.mask, torch.ones_like(answer)], dim=1)
        self.cache, self.unforwarded = output.past_key_values, 1
        return output

    def go_on(self, ids: Tensor, cache: Any) -> None:
        """Take over the answer to the first prompt that was made by another call than `turn`."""
        self.ids, self.mask, self.cache, self.unforwarded = ids, torch.ones_like(ids), cache, 1
        self.prompt = torch.ones_like(ids[:, :-1])
        self.prompt[:, self.inputs["input_ids"].shape[1] :] = 0

    def crop(self, length: int) -> None:
        """Forget everything from a position on."""
        self.cache.crop(length - self.cache.get_seq_length())
        self.ids, self.mask, self.prompt = self.ids[:, :length], self.mask[:, :length], self.prompt[:, :length]
        self.unforwarded = 0

    def expected_card(self, since: int = 0) -> Tensor:
        """CARD of everything that was forwarded as prompt from a position on.

        Where that is not the beginning, nothing is known of what was there before, nor that it was an answer.
        """
        updates = prompt_updates(self.family, self.family.build(), self.whole())[:, : self.prompt.shape[1]]
        counts = self.prompt.clone()
        counts[:, :since] = 0
        if since:
            counts[:, since] = self.mask[:, since]
        return direction(updates, counts)


def assert_card(output: Any, expected: Tensor) -> None:
    torch.testing.assert_close(output.rudder.card.double(), expected, rtol=0, atol=2e-6)


@pytest.fixture
def chat() -> Iterator[Chat]:
    """A conversation with a steered LLaVA."""
    model = FAMILIES["llava"].build()
    with attach(model, settings()):
        yield Chat(FAMILIES["llava"], model)


@pytest.mark.parametrize("name", ["llava", "idefics2", "qwen2_5_vl", "gemma3", "gemma3-window"])
def test_turns_are_pooled_together(name: str) -> None:
    """CARD of each turn pools every prompt so far, of a left-padded batch too, without a word about it."""
    model = FAMILIES[name].build()
    with attach(model, settings()), no_warning():
        chat = Chat(FAMILIES[name], model, (ROW, OTHER_ROW))
        for turn in range(3):
            chat.say(3 + turn, seed=turn)
            output = chat.turn(output_rudder=True)
            assert_card(output, chat.expected_card())
            # The answer to a turn without a picture of its own is steered: the conversation has one.
            assert output.rudder.gate[:, 1:].min() > 0


def test_only_the_new_tokens_given(chat: Chat) -> None:
    """Passing the new ids with the whole mask is the same as passing all ids."""
    twin = Chat(chat.family, chat.model)
    outputs = []
    for each, only_new in ((chat, False), (twin, True)):
        each.turn()
        each.say(4)
        outputs.append(each.turn(only_new=only_new, output_rudder=True))
    assert torch.equal(torch.stack(outputs[0].logits), torch.stack(outputs[1].logits))
    assert torch.equal(outputs[0].rudder.card, outputs[1].rudder.card)


@pytest.mark.parametrize("steer_first_token", [False, True])
def test_static_cache(chat: Chat, steer_first_token: bool) -> None:
    """A static cache that the caller made is a conversation like any other."""
    chat.cache = StaticCache(config=chat.model.config.get_text_config(), max_cache_len=64)
    with no_warning():
        for turn in range(2):
            chat.say(3, seed=turn)
            output = chat.turn(output_rudder=True, rudder={"steer_first_token": steer_first_token})
    assert_card(output, chat.expected_card())
    assert (output.rudder.gate[0, 0] > 0) == steer_first_token


def test_answer_taken_back(chat: Chat) -> None:
    """A cache cropped to its prompt, to answer anew, is still known."""
    chat.say(3)
    chat.turn()
    chat.crop(chat.ids.shape[1] - NEW)
    chat.say(4, seed=1)
    with no_warning():
        output = chat.turn(output_rudder=True)
    assert_card(output, chat.expected_card())


def fill_unsteered(chat: Chat) -> None:
    chat.turn(rudder=False)


def copy_the_cache(chat: Chat) -> None:
    chat.turn()
    chat.cache = copy.deepcopy(chat.cache)


def crop_into_the_prompt(chat: Chat) -> None:
    chat.say(3)
    chat.turn()
    chat.crop(chat.ids.shape[1] - NEW - 2)


def lose_a_row(chat: Chat) -> None:
    pair = Chat(chat.family, chat.model, (ROW, Row(seed=5, words=ROW.words)))
    pair.turn()
    pair.cache.batch_select_indices(torch.tensor([0]))
    chat.ids, chat.mask, chat.prompt, chat.cache = pair.ids[:1], pair.mask[:1], pair.prompt[:1], pair.cache


@pytest.mark.parametrize("fill", [fill_unsteered, copy_the_cache, crop_into_the_prompt, lose_a_row])
def test_an_unknown_cache_gives_a_warning_and_the_new_tokens_alone(fill: Callable[[Chat], None], chat: Chat) -> None:
    fill(chat)
    cached = chat.cache.get_seq_length()
    chat.say(4, seed=1)
    with pytest.warns(RudderWarning, match=UNREAD):
        output = chat.turn(output_rudder=True, rudder={"force": True})
    assert_card(output, chat.expected_card(since=cached))


def nothing(chat: Chat) -> None:
    pass


def change_the_layer(chat: Chat) -> None:
    chat.model._rudder_handle.config.layer = 1


def talk_unsteered(chat: Chat) -> None:
    chat.say(4)
    chat.turn(rudder=False)


def break_off(chat: Chat) -> None:
    chat.say(4)

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chat.turn(streamer=Listener(3, fail))
    # What the broken turn has forwarded: its prompt and one token of its answer.
    chat.ids = torch.cat([chat.ids, torch.full((1, 1), 20)], dim=1)
    chat.mask = torch.ones_like(chat.ids)


@pytest.mark.parametrize(
    ("between", "settings_now"),
    [
        (nothing, {"pool": "norm"}),
        (nothing, {"span": "text"}),
        (change_the_layer, {}),
        (talk_unsteered, {}),
        (break_off, {}),
    ],
)
def test_sums_that_do_not_belong_together_are_not_mixed(
    between: Callable[[Chat], None], settings_now: dict[str, Any], chat: Chat
) -> None:
    chat.turn()
    between(chat)
    chat.say(4, seed=1)
    with pytest.warns(RudderWarning, match=UNREAD):
        chat.turn(rudder={**settings_now, "force": True})


def test_answers_of_one_prompt_go_on_as_a_batch(chat: Chat) -> None:
    """Two answers to one prompt are two rows of the next turn, and both remember the picture."""
    arguments = chat.whole()
    output = run(chat.model, arguments, num_return_sequences=2, do_sample=True, top_k=20)
    pair = Chat(chat.family, chat.model, (ROW, ROW))
    pair.go_on(output.sequences, output.past_key_values)
    pair.say(4)
    with no_warning():
        second = pair.turn(output_rudder=True)
    assert_card(second, pair.expected_card())
    assert second.rudder.gate[:, 1:].min() > 0


def test_force_is_not_remembered(chat: Chat) -> None:
    """A first turn without a picture that was forced does not count as one with a picture."""
    text = Chat(chat.family, chat.model, (Row(seed=3, words=8, images=0),))
    text.turn(rudder={"force": True})
    text.say(4)
    with pytest.warns(RudderWarning, match="no image"):
        output = text.turn(output_rudder=True)
    assert torch.equal(output.rudder.push, torch.zeros(1, NEW))


def test_caches_are_not_kept_alive(chat: Chat) -> None:
    """A conversation that the caller drops is gone."""
    chat.turn()
    chat.say(4)
    chat.turn()
    cache = weakref.ref(chat.cache)
    chat.cache = None
    gc.collect()
    assert cache() is None


def test_nothing_is_written_onto_the_cache(chat: Chat) -> None:
    """The cache of a steered generation has the attributes of a stock one."""
    steered, vanilla = chat.turn().past_key_values, run(chat.family.build(), Chat(chat.family, chat.model).whole())
    assert vars(steered).keys() == vars(vanilla.past_key_values).keys()
    assert_same(vanilla, run(chat.model, Chat(chat.family, chat.model).whole(), rudder=False))


# An answer that goes on: stock transformers gives the same as in one call, and so does RUDDER.


def whole_mask(ids: Tensor) -> dict[str, Any]:
    """Ids without padding as inputs."""
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


GOING_ON: list[tuple[str, int, str]] = [
    *((name, first, "") for name in ("llava", "qwen2_5_vl", "idefics2", "gemma3") for first in (1, 3)),
    ("llava", 2, "only the new ids"),
    ("llava", 2, "a static cache"),
    ("llava", 4, "a cropped cache"),
]


@pytest.mark.parametrize(("name", "first", "how"), GOING_ON)
@pytest.mark.parametrize("mode", ["beta", "add"])
def test_an_answer_that_goes_on_equals_one_call(name: str, first: int, how: str, mode: str) -> None:
    """What was cropped out of the cache is forwarded again, and steered again."""
    model = FAMILIES[name].build()
    inputs = FAMILIES[name].inputs(model, (ROW, OTHER_ROW))
    options: dict[str, Any] = {"output_rudder": True, "rudder": {"alpha_max": [6.0, 3.0], "mode": mode}}
    cache = StaticCache(model.config, max_cache_len=64) if "static" in how else None
    with attach(model, settings()), no_warning():
        whole = run(model, inputs, **options)
        start = run(model, inputs, max_new_tokens=first, past_key_values=cache, **options)
        ids, cache = start.sequences, start.past_key_values
        answered = torch.ones_like(ids[:, inputs["input_ids"].shape[1] :])
        types = {key: token_types(ids) for key in ("mm_token_type_ids", "token_type_ids") if key in inputs}
        if "cropped" in how:
            cache.crop(-2)
        again = {
            "input_ids": ids[:, cache.get_seq_length() :] if "new" in how else ids,
            "attention_mask": torch.cat([inputs["attention_mask"], answered], dim=1),
        }
        rest = run(model, {**again, **types}, max_new_tokens=NEW - first, past_key_values=cache, **options)
    assert torch.equal(rest.sequences[:, first - NEW :], whole.sequences[:, first - NEW :])
    torch.testing.assert_close(torch.stack(rest.logits), torch.stack(whole.logits[first:]), rtol=2e-5, atol=2e-5)
    for part in ("similarity", "gate", "push"):
        parts = [getattr(output.rudder, part) for output in (start, rest)]
        torch.testing.assert_close(torch.cat(parts, dim=1), getattr(whole.rudder, part), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rest.rudder.card, whole.rudder.card, rtol=0, atol=2e-6)
    assert rest.rudder.gate.min() > 0


def test_an_answer_goes_on_again_and_again_and_then_a_turn_follows(chat: Chat) -> None:
    model, inputs = chat.model, chat.inputs
    with no_warning():
        whole = run(model, inputs)
        output = run(model, inputs, max_new_tokens=1)
        for _ in range(NEW - 1):
            again = whole_mask(output.sequences)
            output = run(model, again, max_new_tokens=1, past_key_values=output.past_key_values)
        assert torch.equal(output.sequences, whole.sequences)
        # CARD of the next turn pools its prompt with the first one's, and none of the answer's tokens.
        chat.go_on(output.sequences, output.past_key_values)
        chat.say(3)
        assert_card(chat.turn(output_rudder=True), chat.expected_card())


def test_one_of_the_returned_sequences_goes_on(chat: Chat) -> None:
    """The cache of the chosen beam, cut out as transformers offers it, goes on with CARD of its prompt."""
    model, inputs = chat.model, chat.inputs
    with no_warning():
        beams = run(model, inputs, max_new_tokens=3, num_beams=3, num_return_sequences=3, output_rudder=True)
        cache = beams.past_key_values
        cache.batch_select_indices(torch.tensor([0]))
        output = run(model, whole_mask(beams.sequences[:1]), past_key_values=cache, output_rudder=True)
    torch.testing.assert_close(output.rudder.card, beams.rudder.card[:1])
    assert output.rudder.gate.min() > 0  # the first new token's position included: it is no prompt
    plain = run(model, inputs, max_new_tokens=3, output_rudder=True)
    assert plain.rudder.gate[0, 0] == 0


@pytest.mark.parametrize(("rows", "cropped", "other"), [((ROW,), 0, -1), ((ROW, ROW), 0, -1), ((ROW,), 2, -2)])
def test_other_tokens_are_a_new_turn(chat: Chat, rows: Any, cropped: int, other: int) -> None:
    """As many tokens as are missing in the cache, but one of them in one row is not what was emitted: a prompt."""
    model = chat.model
    start = run(model, chat.family.inputs(model, rows), max_new_tokens=4)
    if cropped:
        start.past_key_values.crop(-cropped)
    ids = start.sequences.clone()
    ids[-1, other] = (ids[-1, other] + 1) % 100
    output = run(model, whole_mask(ids), past_key_values=start.past_key_values, output_rudder=True)
    assert (output.rudder.gate[:, 0] == 0).all()


def test_a_second_turn_with_beams_in_a_batch(chat: Chat) -> None:
    """Beams of a prompt share what its own earlier prompts were pooled to."""
    greedy, beams = (Chat(chat.family, chat.model, (ROW, OTHER_ROW)) for _ in range(2))
    with no_warning():
        for each in (greedy, beams):
            each.turn()
            each.say(4, seed=3)
        cards = greedy.turn(output_rudder=True).rudder.card
        # As transformers leaves it to the caller: rows of the cache for the beams of each prompt.
        beams.cache.batch_repeat_interleave(2)
        arguments = {"input_ids": beams.ids, "attention_mask": beams.mask, "past_key_values": beams.cache}
        output = run(chat.model, arguments, num_beams=2, num_return_sequences=2, output_rudder=True)
    torch.testing.assert_close(output.rudder.card, cards.repeat_interleave(2, dim=0), rtol=0, atol=2e-6)
    assert (cards[0] - cards[1]).norm() > 0.05


def test_a_second_turn_of_embeddings(chat: Chat) -> None:
    """What the cache holds of them is not forwarded again; the last of the rest emits the first token."""
    model, embed = chat.model, chat.model.get_input_embeddings()
    ids = torch.arange(10, 24)[None]
    options: dict[str, Any] = {"rudder": {"force": True, "steer_first_token": True}, "output_rudder": True}
    cache = run(model, {"inputs_embeds": embed(ids[:, :6])}, max_new_tokens=1, **options).past_key_values
    assert cache.get_seq_length() == 6
    inputs = {"inputs_embeds": embed(ids), "attention_mask": torch.ones_like(ids), "past_key_values": cache}
    output = run(model, inputs, **options)
    assert output.rudder.gate[0, 0] > 0
    assert output.rudder.gate.shape == (1, NEW)


def test_a_turn_that_returns_a_plain_tensor_is_remembered(chat: Chat) -> None:
    cache = DynamicCache(config=chat.model.config)
    ids = chat.model.generate(**chat.inputs, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
    assert isinstance(ids, Tensor)
    chat.go_on(ids, cache)
    chat.say(3)
    with no_warning():
        assert_card(chat.turn(output_rudder=True), chat.expected_card())
