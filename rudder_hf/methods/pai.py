"""PAI: amplify attention to the image, and lead away from what the text alone would say."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, pad
from transformers import AttentionInterface

from ..core.backbones import self_attention
from ..core.errors import UnsupportedModelError
from .base import grid, number
from .branches import image_positions, text_branch
from .runs import LoopMethod, Run, cut_off, refuse_beam_sampling

Attention = Callable[..., tuple[Tensor, Any]]
"""(module, query, key, value, mask, scaling=, dropout=, ...) -> output (rows, queries, heads, head size), weights."""

# Configs can only be put back in the order in which they were exchanged: one call at a time.
_LOCK = threading.RLock()
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class PAI(LoopMethod):
    """Paying more attention to image (Liu et al., ECCV 2024).

    Attention: in layers from `first_layer` on, the last query's scores w before the softmax become w + alpha |w| at
    image tokens. Guidance: log p = u + gamma (s - u), with s the log-probabilities and u those of the prompt without
    its image, unamplified; tokens less likely than `cut_off` times the likeliest are cut off.

    Unlike the published code: image tokens are found for each row, where the code has one range for all; the branch
    without image has an attention mask, and its cache follows the beams; any attention implementation, grouped
    queries included; under beams the guided scores are normalised again.
    """

    name = "pai"
    # Each token is forwarded without the image too, and the prompt without its image is prefilled.
    forwards_per_token = 2.0
    extra_prefills = 1
    searched = grid(alpha=(0.1, 0.2, 0.35, 0.5), gamma=(1.1, 1.5))

    alpha: float = number(0.2, 0, 1000)  # strength of the amplification
    # Strength of the guidance. 1.1 as in the README's commands (2 in the code's defaults), which recommend it for
    # sampling
    gamma: float = number(1.1, 0, 1000)
    cut_off: float = number(0.1, 0, 1)  # plausibility cut-off of the guidance; 0 keeps every token
    first_layer: int = number(2, 0, 10_000)  # first layer that is amplified
    # Whether the last prompt token, which emits the first answer token, is amplified. None is no, as in the published
    # code with guidance
    first_token: bool | None = None

    def prepare(self, run: Run) -> None:
        """See `LoopMethod.prepare`."""
        refuse_beam_sampling(run, self.cut_off)
        layers = list(run.backbone.layers)[self.first_layer :]
        if not layers:
            raise ValueError(
                f"{self.name} would amplify none of the model's {len(run.backbone.layers)} layers from "
                f"{self.first_layer} on: set a lower `first_layer`."
            )
        calls: Counter[int] = Counter()
        image = run.expand(image_positions(run.backbone.model, run.call))
        run.exits.enter_context(around_attention(layers, functools.partial(self._amplified, run, image, calls)))
        run.branch = text_branch(run.backbone, run.call)

        def finish(logits: Tensor) -> Tensor:
            if calls[run.steps] < len(layers):
                raise UnsupportedModelError(
                    f"{self.name} amplifies {len(layers)} layers, but the model called its attention function in "
                    f"{calls[run.steps]} of them."
                )
            return guide(logits, run.advance_branch(), self.gamma, self.cut_off)

        run.on_logits = finish

    def _amplified(self, run: Run, image: Tensor, calls: Counter[int], original: Attention) -> Attention:
        """An attention function that amplifies the last query's scores; other queries keep the original's output."""

        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
        ) -> tuple[Tensor, Any]:
            output, weights = original(module, query, key, value, attention_mask, **kwargs)
            if not run.active:
                return output, weights
            calls[run.steps + 1] += 1
            if run.steps == 0 and not self.first_token:
                return output, weights
            scores = last_scores(query, key, attention_mask, kwargs)
            last = attend_amplified(scores, image.to(key.device), value, self.alpha)
            return torch.cat([output[:, :-1], last.to(output.dtype)], dim=1), weights

        return attend


@contextmanager
def around_attention(layers: Sequence[nn.Module], around: Callable[[Attention], Attention]) -> Iterator[None]:
    """While the block runs, attention of the given decoder layers goes through `around(original)`.

    transformers looks attention functions up by the name in the attention module's config. While the block runs, the
    modules have a copy of that config with another name, which is registered; masks are made by the model's own
    config and do not change.

    Args:
        layers: The decoder layers.
        around: Makes the new function from the one that the layer uses (sdpa, eager, flash).

    Raises:
        UnsupportedModelError: A layer's attention does not look its function up.
    """
    with _LOCK, ExitStack() as exits:
        for module in map(self_attention, layers):
            name, original = f"rudder_hf_{next(_NUMBERS)}", _attention_function(module)
            config = copy.copy(module.config)
            config._attn_implementation_internal = name  # type: ignore[union-attr]
            AttentionInterface.register(name, around(original))
            exits.callback(AttentionInterface._global_mapping.pop, name, None)
            exits.callback(vars(module).__setitem__, "config", module.config)
            vars(module)["config"] = config
        yield


def _attention_function(module: nn.Module) -> Attention:
    """The function that an attention module would call."""
    config, source = vars(module).get("config"), sys.modules[type(module).__module__]
    if not hasattr(config, "_attn_implementation_internal") or not hasattr(source, "ALL_ATTENTION_FUNCTIONS"):
        raise UnsupportedModelError(
            f"This method changes attention, but {type(module).__name__} does not take its attention function from "
            "transformers' AttentionInterface."
        )
    default = getattr(source, "eager_attention_forward", None)
    return source.ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, default)  # type: ignore[no-any-return,union-attr]


def last_scores(query: Tensor, key: Tensor, mask: Tensor | None, options: Mapping[str, Any]) -> Tensor:
    """The last query's scores before the softmax, masked ones minus infinity: (rows, heads, 1, keys) in float32.

    Args:
        query: (rows, heads, queries, head size).
        key: (rows, key heads, keys, head size).
        mask: As attention functions get it: None, (rows, keys), or (rows, 1, queries, keys) boolean or additive.
        options: The function's other arguments: `scaling`; those that change scores in another way are refused.
    """
    for name in ("softcap", "s_aux", "sinks"):
        if options.get(name) is not None:
            raise UnsupportedModelError(f"This method computes attention itself and does not know `{name}`.")
    heads = query.shape[1] // key.shape[1]
    scaling = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    keys = key.repeat_interleave(heads, dim=1).float().transpose(2, 3)
    scores: Tensor = torch.matmul(query[:, :, -1:].float(), keys) * scale
    if mask is None:
        return scores
    part = mask[:, None, None, -key.shape[2] :].bool() if mask.dim() == 2 else mask[:, :, -1:, : key.shape[2]]
    # Additive masks hold the dtype's lowest number, or minus infinity.
    allowed = part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min / 2
    return scores.masked_fill(~allowed, -torch.inf)


def attend_amplified(scores: Tensor, image: Tensor, value: Tensor, alpha: float) -> Tensor:
    """softmax(w + alpha |w| at image tokens) V for one query of each row, (rows, 1, heads, head size).

    Args:
        scores: w, (rows, heads, 1, keys); minus infinity where a position is masked.
        image: True at the image tokens of the prompt, (rows, prompt length).
        value: V, (rows, value heads, keys, head size).
        alpha: Strength.
    """
    keys, prompt_length = scores.shape[-1], image.shape[1]
    if keys < prompt_length:
        raise UnsupportedModelError(
            "pai cannot distinguish image tokens where a sliding window has dropped a part of the prompt "
            f"({keys} of {prompt_length} positions are left)."
        )
    at_image = pad(image, (0, keys - prompt_length))[:, None, None]
    # What a sliding window hides stays hidden.
    scores = torch.where(at_image & scores.isfinite(), scores + alpha * scores.abs(), scores)
    weights = torch.softmax(scores, dim=-1).to(value.dtype)
    groups = scores.shape[1] // value.shape[1]
    return torch.matmul(weights, value.repeat_interleave(groups, dim=1)).transpose(1, 2)


def guide(logits: Tensor, other: Tensor, gamma: float, share: float) -> Tensor:
    """Scores u + gamma (s - u) where s is plausible; s and u are the log-probabilities of `logits` and `other`."""
    s, u = log_softmax(logits, dim=-1), log_softmax(other.to(logits.device), dim=-1)
    return cut_off(u + gamma * (s - u), s, share)
