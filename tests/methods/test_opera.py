"""OPERA against a search that computes everything anew: eager attention of the whole sequence for every candidate."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rudder_hf.methods.opera import Opera, OperaSearch, add_row, column_score, column_sums
from tests.support.helpers import OTHER_ROW
from tests.support.methods import built, run
from tests.support.zoo import FAMILIES, Row
from tests.support.zoo.base import IMAGE

BEAMS = 3


class SlowOpera:
    """The method as its paper and code say it, for one prompt without padding, in plain Python."""

    def __init__(self, model: Any, inputs: dict[str, Any], settings: Opera) -> None:
        self.model = model
        self.inputs = inputs
        self.settings = settings
        self.length = inputs["input_ids"].shape[1]
        self.image = (inputs["input_ids"][0] == IMAGE).nonzero().flatten().tolist()
        self.returned: list[int] = []

    @torch.no_grad()
    def forward(self, tokens: list[int]) -> tuple[Tensor, list[list[float]]]:
        """Logits after the tokens, and the last layer's attention map."""
        ids = torch.cat([self.inputs["input_ids"], torch.tensor([tokens], dtype=torch.long)], dim=1)
        output = self.model(
            input_ids=ids, pixel_values=self.inputs["pixel_values"], output_attentions=True, use_cache=False
        )
        heads = output.attentions[-1][0].amax(dim=0)
        return output.logits[0, -1], (heads / heads.sum(dim=-1, keepdim=True)).tolist()

    def candidate(self, tokens: list[int]) -> tuple[float, int]:
        """Penalty of the last token, and the column that wins."""
        _, weights = self.forward(tokens)
        scores = []
        for j in range(len(tokens)):
            product = 1e-7
            for i in range(j, len(tokens)):
                product *= self.settings.scale * weights[self.length + i][self.length + j]
            scores.append(min(product, 65504.0))
        phi, column = max(scores), scores.index(max(scores))
        if len(tokens) <= 10:
            phi = -sum(weights[-1][position] for position in self.image)
        return phi, column

    def penalised(self, tokens: list[int]) -> tuple[Tensor, int]:
        logits, _ = self.forward(tokens)
        result, columns = torch.full_like(logits, -999.0), []
        for token in logits.topk(self.settings.candidates).indices.tolist():
            phi, column = self.candidate([*tokens, token])
            result[token] = logits[token] - self.settings.penalty * phi
            columns.append(column)
        return result, mode(columns)

    def search(self, steps: int) -> tuple[list[int], float]:
        beams: list[tuple[float, list[int], list[int]]] = [(0.0 if i == 0 else -1e9, [], []) for i in range(BEAMS)]
        past: list[Any] = []
        returns: dict[int, int] = {}
        rejected: dict[int, list[tuple[int, int]]] = {}
        while len(past) < steps:
            logits, columns = zip(*(self.penalised(tokens) for _, tokens, _ in beams), strict=True)
            beams = [
                (score, tokens, [*won, column]) for (score, tokens, won), column in zip(beams, columns, strict=True)
            ]
            place = self.place(beams, returns, len(past))
            if place is not None:
                self.returned.append(place)
                returns[place] = returns.get(place, 0) + 1
                beams, chosen = past[place]
                past = past[:place]
                rejected = {index: pairs for index, pairs in rejected.items() if index <= place}
                rejected[place] = rejected.get(place, []) + chosen
                logits = tuple(self.forward(tokens)[0].clone() for _, tokens, _ in beams)
                for beam, token in rejected[place]:
                    logits[beam][token] = -999.0
            continued = []
            for parent, (score, _, _) in enumerate(beams):
                for token, value in enumerate(torch.log_softmax(logits[parent], dim=-1).tolist()):
                    continued.append((score + value, parent, token))
            best = sorted(continued, key=lambda entry: -entry[0])[:BEAMS]
            past.append((beams, [(parent, token) for _, parent, token in best]))
            beams = [(score, [*beams[parent][1], token], beams[parent][2]) for score, parent, token in best]
        return beams[0][1], beams[0][0] / steps

    def place(self, beams: Any, returns: dict[int, int], tokens: int) -> int | None:
        if self.settings.threshold is None:
            return None
        column = mode([won[-1] for _, _, won in beams])
        if column < 10 or not all(won.count(column) > self.settings.threshold for _, _, won in beams):
            return None
        for place in (column + 1, column):
            if returns.get(place, 0) < self.settings.candidates:
                return place if place < tokens else None
        return None


def mode(values: list[int]) -> int:
    """The most frequent value; of several the smallest."""
    return min(set(values), key=lambda value: (-values.count(value), value))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "settings", "steps", "goes_back"),
    [
        (Row(seed=1, words=7), Opera(candidates=4), 5, False),
        (Row(seed=2, words=7), Opera(candidates=3, threshold=0, scale=12.0, penalty=1e6), 18, True),
    ],
    ids=["image", "going back"],
)
def test_equals_the_slow_search(row: Row, settings: Opera, steps: int, goes_back: bool) -> None:
    family = FAMILIES["llava"]
    eager = family.build()
    eager.set_attn_implementation("eager")
    inputs = family.inputs(eager, [row])
    slow = SlowOpera(eager, inputs, settings)
    tokens, score = slow.search(steps)
    assert bool(slow.returned) == goes_back
    # In a left-padded batch, with the default attention implementation.
    batch = family.inputs(eager, [row, OTHER_ROW])
    output = run(settings, built("llava"), batch, num_beams=BEAMS, max_new_tokens=steps)
    assert output.sequences[0, -steps:].tolist() == tokens
    assert float(output.sequences_scores[0]) == pytest.approx(score, rel=1e-3, abs=1e-3)


def test_the_search_ends_like_beam_search() -> None:
    """With an end-of-sequence token, several sequences returned and a length penalty: beam search's own rules."""
    model, inputs = built("llava"), FAMILIES["llava"].inputs(built("llava"), [Row(seed=1, words=7), OTHER_ROW])
    plain = Opera(penalty=0.0, threshold=None, candidates=120)
    first = run(plain, model, inputs, num_beams=3, max_new_tokens=8).sequences
    options = {
        "num_beams": 3,
        "max_new_tokens": 8,
        "num_return_sequences": 2,
        "length_penalty": 0.3,
        "eos_token_id": first[0, -6].item(),
        "output_scores": True,
    }
    expected = model.generate(**inputs, **options, do_sample=False, return_dict_in_generate=True)
    output = run(plain, model, inputs, **options)
    assert torch.equal(output.sequences, expected.sequences)
    assert torch.equal(output.beam_indices, expected.beam_indices)
    torch.testing.assert_close(output.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4)
    assert (expected.sequences == options["eos_token_id"]).any()
    for early_stopping in (True, "never"):
        for length_penalty in (-1.0, 0.0, 0.3, 1.5):
            more = {**options, "early_stopping": early_stopping, "length_penalty": length_penalty}
            expected = model.generate(**inputs, **more, do_sample=False, return_dict_in_generate=True)
            assert torch.equal(run(plain, model, inputs, **more).sequences, expected.sequences)
    with_processor = {**options, "no_repeat_ngram_size": 1}
    expected = model.generate(**inputs, **with_processor, do_sample=False, return_dict_in_generate=True)
    assert torch.equal(run(plain, model, inputs, **with_processor).sequences, expected.sequences)


def test_going_back_rebuilds_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the answer again gives logits and column scores that step by step decoding had."""
    checked = []

    def check(self: OperaSearch, parents: Tensor) -> None:
        forward(self, parents)
        if self.tokens >= 3:
            logits, sums, kwargs = self.logits, self.sums, self.model_kwargs
            self._read_again()
            torch.testing.assert_close(self.logits, logits, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(self.sums, sums, rtol=1e-3, atol=1e-3)
            for name in ("attention_mask", "position_ids"):
                torch.testing.assert_close(self.model_kwargs.get(name), kwargs.get(name))
            checked.append(self.tokens)

    forward = OperaSearch._forward
    monkeypatch.setattr(OperaSearch, "_forward", check)
    for name in ("llava", "idefics2", "instructblip", "qwen2_5_vl"):
        model = built(name)
        inputs = FAMILIES[name].inputs(model, [Row(seed=1, words=7), OTHER_ROW])
        run(Opera(candidates=2), model, inputs, num_beams=2, max_new_tokens=5)
    assert len(checked) == 4 * 2 * 2


def test_column_scores() -> None:
    block = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0))
    sums = column_sums(block, 7.0)
    for row in range(2):
        for j in range(5):
            product = math.prod(7.0 * float(block[row, i, j]) for i in range(j, 5))
            assert float(sums[row, j].exp()) == pytest.approx(product, rel=1e-4)
    torch.testing.assert_close(add_row(column_sums(block[:, :4, :4], 7.0), block[:, 4], 7.0), sums)
    score, column = column_score(torch.tensor([[1.0, 20.0, -torch.inf], [200.0, 0.0, 0.0]]))
    assert column.tolist() == [1, 0]
    assert score.tolist() == pytest.approx([1e-7 * math.exp(20.0), 65504.0], rel=1e-4)
