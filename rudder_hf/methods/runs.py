"""One `generate` call of a method that works inside the stock token loop.

Greedy search, sampling, beams, streamers and stopping criteria stay transformers' own: a method only hooks layers, and
replaces the logits that a forward of the loop returns. Hooks exist while a call runs; they do nothing in forwards of
other threads, of side branches and of other generations.
"""

from __future__ import annotations

import functools
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..core.backbones import Backbone, find_backbone
from ..core.call import Call
from ..core.errors import UnsupportedModelError
from .base import Generate, Method, check_sample_ids, refuse_steered
from .branches import Branch, hidden_states_of

# Options under which the loop does more, or less, than forward one new token for each row.
_REFUSED_OPTIONS = {
    "prompt_lookup_num_tokens": "it forwards several candidates at once",
    "assistant_model": "it forwards several candidates at once",
    "prefill_chunk_size": "transformers drops the images of a prompt that is prefilled in chunks",
    "token_healing": "it changes the prompt",
    "custom_generate": "it replaces the token loop",
    "dola_layers": "it replaces the token loop",
    "penalty_alpha": "it replaces the token loop",
}
# The module of a layer whose output is what the feed-forward part adds to the residual stream: the norm after it where
# there is one, else the feed-forward module itself.
_MLP_OUTPUT_NAMES = (
    "post_feedforward_layernorm",
    "post_mlp_layernorm",
    "mlp",
    "feed_forward",
    "block_sparse_moe",
    "moe",
)


class Run:
    """What a method sees and hooks during one `generate`.

    Args:
        method: The method's name, for messages.
        backbone: The parts of the model.
        arguments: Those of `generate`, by name.
        sample_ids: One id for each prompt; without ids their places in the batch.
    """

    def __init__(
        self, method: str, backbone: Backbone, arguments: dict[str, Any], sample_ids: Sequence[str] | None
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.arguments = arguments
        # As the loop sees it: models such as InstructBLIP hand options to a language model that has its own defaults.
        self.call = Call(backbone.loop, (), arguments)
        self.sample_ids = check_sample_ids(sample_ids, self.call.batch)
        # Is called after each forward of the loop with the last position's logits, (rows, vocabulary) in float32;
        # returns those that the loop goes on with
        self.on_logits: Callable[[Tensor], Tensor] | None = None
        self.branch: Branch | None = None  # a side branch, whose cache follows the beams; `advance_branch` moves it on
        self.steps = 0  # number of forwards of the loop that are complete
        self.exits = ExitStack()
        self._thread = threading.get_ident()
        self._inside = False
        self._cache: Any = None
        self._tokens: Tensor | None = None
        for name, reason in _REFUSED_OPTIONS.items():
            if self.call.option(name) not in (None, False):
                raise ValueError(f"{method} cannot run with `{name}`: {reason}. Unset it.")
        if self.call.option("cache_implementation") == "paged":
            raise ValueError(f"{method} cannot run with continuous batching (cache_implementation='paged').")
        if self.call.cached_length:
            raise ValueError(
                f"{method} needs the whole prompt in one call, but `past_key_values` already holds "
                f"{self.call.cached_length} positions. Pass the whole conversation without a cache."
            )

    @property
    def beams(self) -> int:
        """Number of beams."""
        return int(self.call.option("num_beams", 1))

    def expand(self, values: Tensor) -> Tensor:
        """One row for each row of the loop (beams, return sequences), from one for each prompt."""
        return values.repeat_interleave(max(self.beams, int(self.call.option("num_return_sequences", 1))), dim=0)

    @property
    def active(self) -> bool:
        """Whether this thread is within a forward of the loop: not of a branch, nor of another generation."""
        return self._inside and threading.get_ident() == self._thread

    def hook_output(self, module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        """Within forwards of the loop, replace a module's output x by `change(x)`."""

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            if not self.active:
                return None
            changed = change(hidden_states_of(output))
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        self.exits.callback(module.register_forward_hook(after).remove)

    def hook_mlps(self, change: Callable[[int, Tensor], Tensor]) -> None:
        """Within forwards of the loop, replace the output x of each layer's MLP by `change(layer, x)`."""
        for index, layer in enumerate(self.backbone.layers):
            self.hook_output(_mlp_output(layer), functools.partial(change, index))

    def read_out(self, indices: Sequence[int]) -> Callable[[], list[Tensor]]:
        """Read logits out of earlier layers: the head on the raw last position of each `hidden_states[index]`.

        Args:
            indices: Of blocks, whose input is read: 0 for the embeddings, i for the output of block i - 1.

        Returns:
            A function that gives the newest forward's logits for each index, (rows, vocabulary) in float32.
        """
        seen: dict[int, Tensor] = {}
        head = self.backbone.loop.get_output_embeddings()  # type: ignore[operator]

        def keep(index: int, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if self.active:
                seen[index] = (args[0] if args else kwargs["hidden_states"])[:, -1]

        for index in indices:
            hook = functools.partial(keep, index)
            self.exits.callback(self.backbone.layers[index].register_forward_pre_hook(hook, with_kwargs=True).remove)
        return lambda: [head(seen[index]).float() for index in indices]

    def _before_forward(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        cache = kwargs.get("past_key_values")
        if self.steps == 0 and not self._inside:
            self._adopt(cache)
        self._inside = cache is self._cache
        ids = kwargs.get("input_ids")
        if self._inside and ids is not None:
            self._tokens = ids[:, -1:]

    def _adopt(self, cache: Any) -> None:
        """Recognise the loop's forwards by their cache, and let the side branch follow its beams."""
        self._cache = cache
        if self.branch is None or self.beams == 1:
            return
        if cache is None:
            raise ValueError(f"{self.method} with beams needs the cache, which tells how beams move: unset use_cache.")
        reorder, branch = cache.reorder_cache, self.branch

        def reorder_both(beams: Tensor) -> None:
            reorder(beams)
            branch.reorder(beams)

        cache.reorder_cache = reorder_both
        self.exits.callback(vars(cache).pop, "reorder_cache", None)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        if not self.active:
            return None
        self._inside = False
        self.steps += 1
        if self.on_logits is None:
            return None
        output.logits = self.on_logits(output.logits[:, -1].float()).unsqueeze(1)
        return output

    def advance_branch(self) -> Tensor:
        """Forward the side branch to where the loop is; its logits, (rows, vocabulary) in float32."""
        assert self.branch is not None
        return self.branch.forward(None if self.steps == 1 else self._tokens)

    def generate(self) -> Any:
        """Run the model's own `generate` under the hooks."""
        loop = self.backbone.loop
        self.exits.callback(loop.register_forward_pre_hook(self._before_forward, with_kwargs=True).remove)
        self.exits.callback(loop.register_forward_hook(self._after_forward).remove)
        # A compiled forward would keep the hooks of the call that it was compiled in.
        arguments = {**self.arguments, "disable_compile": True}
        return self.backbone.model.generate(**arguments)  # type: ignore[operator]


class LoopMethod(Method):
    """A method that works inside the stock token loop: subclasses say in `prepare` what they hook."""

    @abstractmethod
    def prepare(self, run: Run) -> None:
        """Set up one call: register hooks, side branch and change of logits on `run`."""

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[Generate]:
        """See `Method.applied`."""
        refuse_steered(model)
        backbone = find_backbone(model)

        @torch.no_grad()
        def generate(*args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any) -> Any:
            arguments = Call(backbone.model, args, kwargs).arguments
            given = {name: value for name, value in arguments.items() if value is not backbone.model}
            run = Run(self.name, backbone, given, sample_ids)
            with run.exits:
                self.prepare(run)
                return run.generate()

        yield generate


def _mlp_output(layer: nn.Module) -> nn.Module:
    """The module of a decoder layer whose output is added to the residual stream after the feed-forward part.

    Raises:
        UnsupportedModelError: The layer has no such module (OPT).
    """
    for name in _MLP_OUTPUT_NAMES:
        module = getattr(layer, name, None)
        if isinstance(module, nn.Module):
            return module
    raise UnsupportedModelError(
        f"This method changes the output of each layer's MLP, but {type(layer).__name__} has none of the modules "
        f"{', '.join(_MLP_OUTPUT_NAMES)}."
    )


def turn(x: Tensor, direction: Tensor, strength: Tensor | float) -> Tensor:
    """||x|| norm(norm(x) + strength norm(d)), in the dtype of x: VISTA and VTI turn x towards d and keep its length.

    Args:
        x: (rows, positions, hidden size).
        direction: d, broadcastable to x; a zero direction leaves x as it is.
        strength: Broadcastable to (rows, positions, 1).
    """
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    turned = normalize(normalize(wide, dim=-1) + strength * normalize(direction.to(wide), dim=-1), dim=-1)
    result: Tensor = (length * turned).to(x.dtype)
    return result


def refuse_beam_sampling(run: Run, share: float) -> None:
    """Raise ValueError for sampling from beams where `cut_off` may leave fewer tokens than have to be drawn."""
    if share > 0 and run.beams > 1 and run.call.option("do_sample", False):
        raise ValueError(
            f"{run.method} cannot sample from beams: its plausibility cut-off may leave fewer tokens than beams have "
            "to be drawn. Use do_sample=False with beams, or num_beams=1 with sampling."
        )


def cut_off(scores: Tensor, by: Tensor, share: float) -> Tensor:
    """Scores, with minus infinity for tokens that are less than `share` times as likely as the likeliest.

    Args:
        scores: (rows, vocabulary).
        by: Logits or log-probabilities that say how likely a token is; a constant in a row makes no difference.
        share: 0 keeps every token.
    """
    if share == 0:
        return scores
    least = by.max(dim=-1, keepdim=True).values + torch.log(torch.tensor(share, device=by.device))
    return scores.masked_fill(by < least, -torch.inf)
