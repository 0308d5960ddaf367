"""OPERA: beam search that penalises over-trusted summary tokens and goes back behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.backbones import find_backbone
from ..core.call import Call
from .base import Generate, Method, check_number, grid, refuse_steered
from .branches import image_positions
from .layers import around_attention
from .opera_attention import AttentionRecorder
from .opera_beams import gather_results, select_rows
from .opera_search import OperaSearch
from .runs import Run

_RECORDS = ("output_logits", "output_attentions", "output_hidden_states")


@dataclass(frozen=True)
class Opera(Method):
    """Over-trust penalty and retrospection-allocation (Huang et al., CVPR 2024), on beam search.

    At each step the `candidates` likeliest tokens of each beam are forwarded to see the last layer's attention (the
    greatest over heads, each row normed to sum 1). Column j of the attention among response tokens gets the score
    s_j = 1e-7 prod_{i >= j} scale * a_ij; a candidate's logit loses `penalty` times the greatest s_j, or, within the
    first 10 response tokens, gains `penalty` times its attention to the image. Other tokens get the logit -999. Where
    the same column j >= 10 has won more than `threshold` times in every beam, the search goes back to the token after
    it, which is chosen anew among the others (at most `candidates` times for a position, then one position earlier).

    Beams only, as published (with 5 of them). The prompts of a batch are prefilled together and searched one after the
    other, because each goes back at its own time.

    Unlike the published code: image tokens are exactly those of the row, where the code counts one more and has one
    range for all rows; scores are float32 and at most 65504, where the code's float16 overflows to infinity; what won
    before follows its beam, where the code leaves it in the beam's place; going back re-reads the answer on the cached
    prompt, where the code runs the whole prompt again (the same result).

    Attributes:
        candidates: Tokens of each beam that are tried (the published N).
        scale: Factor of the attention weights.
        threshold: How often a column may win before the search goes back; None never goes back.
        penalty: Weight of the penalty.
    """

    name = "opera"
    decodings = ("beam",)
    searched = (
        {"candidates": 1, "threshold": 25, "penalty": 1.0},  # the published "efficient" setting
        *grid(candidates=(5,), threshold=(15,), penalty=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)),
    )

    candidates: int = 5
    scale: float = 50.0
    threshold: int | None = 15
    penalty: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "candidates", 1, 1_000_000, whole=True)
        check_number(self, "scale", 1e-6, 1e6)
        check_number(self, "penalty", 0.0, 1e6)
        if self.threshold is not None:
            check_number(self, "threshold", 0, 1_000_000, whole=True)

    @property
    def forwards_per_token(self) -> float:
        """The token itself and the candidates for the next one; tokens that are taken back cost again."""
        return 1.0 + self.candidates

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[Generate]:
        """See `Method.applied`."""
        refuse_steered(model)
        backbone = find_backbone(model)

        @torch.no_grad()
        def generate(*args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any) -> Any:
            run = Run(self.name, backbone, Call(backbone.model, args, kwargs), sample_ids)
            self._refuse_unsupported(run)
            image = image_positions(backbone.model, run.call)
            recorder = AttentionRecorder()
            with around_attention(backbone.loop, [backbone.layers[-1]], recorder.around):
                loop = self._loop(recorder, image)
                return backbone.model.generate(**run.arguments, custom_generate=loop)  # type: ignore[operator]

        yield generate

    def _refuse_unsupported(self, run: Run) -> None:
        option = run.option
        if run.beams == 1:
            raise ValueError(f"{self.refuses('greedy')}: pass num_beams (published with 5).")
        if option("do_sample", False):
            raise ValueError("opera is a beam search without sampling: pass do_sample=False.")
        if option("num_beam_groups", 1) not in (None, 1) or option("constraints") or option("force_words_ids"):
            raise ValueError("opera cannot run as a group or constrained beam search.")
        if option("use_cache", True) is False or option("cache_implementation") not in (None, "dynamic"):
            raise ValueError("opera needs the dynamic cache: unset use_cache and cache_implementation.")
        if run.arguments.get("streamer") is not None:
            raise ValueError("opera cannot stream: beams change earlier tokens.")
        if run.arguments.get("stop_strings") is not None:
            raise ValueError("opera cannot stop at strings: transformers does not hand custom loops the tokenizer.")
        if given := [name for name in _RECORDS if option(name, False)]:
            raise ValueError(f"opera does not record {', '.join(given)}: prompts are searched one after the other.")

    def _loop(self, recorder: AttentionRecorder, image: Tensor) -> Any:
        """The token loop, as `generate(custom_generate=...)` calls it."""

        def search_all(
            loop: Any,
            input_ids: Tensor,
            logits_processor: Any,
            stopping_criteria: Any,
            generation_config: Any,
            **kw: Any,
        ) -> Any:
            inputs = loop.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **kw)
            output = loop(**inputs, return_dict=True)
            logits = output.logits[:, -1].float()
            beams = generation_config.num_beams
            results = []
            for prompt, start in enumerate(range(0, len(input_ids), beams)):
                rows = torch.arange(start, start + beams, device=input_ids.device)
                search = OperaSearch(
                    self,
                    loop,
                    recorder,
                    prompt_ids=input_ids[rows],
                    model_kwargs=select_rows(kw, rows, len(input_ids)),
                    logits=logits[rows],
                    image=image[prompt].to(input_ids.device),
                    processors=logits_processor,
                    criteria=stopping_criteria,
                    config=generation_config,
                )
                results.append(search.run())
            return gather_results(results, generation_config)

        return search_all
