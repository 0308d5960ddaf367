"""What every layer's attention adds to the residual stream, gathered for all layers in one plain pass.

The paper chooses the layer by how well CARD is aligned with what the model does later, and looks at the length of the
updates, absolute and relative to the hidden state. All of it is read here from the unsteered model, while it reads the
prompts and writes the first tokens of its answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.backbones import attention_update, find_backbone, steerable_layers
from ..core.steering import pool_updates, similarity, unit
from ..evaluate.run import batches, encode_samples
from ..evaluate.tasks import Sample, Task
from ..runtime.answers import end_ids, without_prompt
from ..runtime.models import LoadedModel
from ..runtime.report import Progress, followed, no_progress
from ..runtime.store import read_json, to_json, write_new

_ANSWER_TOKENS = 16
_BATCH = 20


@dataclass(frozen=True)
class LayerStatistics:
    """What is known of a layer, averaged over images."""

    layer: int  # its index
    update_norm: float  # mean length of the attention update over prompt positions, ||delta||
    leverage: float  # mean of ||delta|| / ||h|| over prompt positions
    hidden_norm: float  # median length of the hidden state at answer positions: strengths are relative to it
    alignment: float  # mean cosine of CARD and the hidden state at answer positions, s_t as the gate sees it
    specificity: float  # 1 - mean cosine between CARDs of different images: how much of CARD is about the image

    @property
    def rank_score(self) -> float:
        """What layers are ranked by without decoding anything.

        The paper's criterion, alignment of CARD with the states that it will be added to, is weighed with how much of
        CARD is about the image: a direction that is the same for every image is aligned with everything.
        """
        return max(self.alignment, 0.0) * self.specificity


def stored_layer_statistics(
    path: Path, loaded: LoadedModel, task: Task, samples: Sequence[Sample], progress: Progress = no_progress,
    size: int = _BATCH,
) -> list[LayerStatistics]:  # fmt: skip
    """Statistics of every layer: from a file, else from one pass over the samples, which one process writes there."""
    if not path.exists():
        parts = followed(batches(samples, size), "layer statistics", progress)
        statistics = layer_statistics(loaded.model, (encode_samples(loaded, task, part) for part in parts))
        write_new(path, to_json([asdict(entry) for entry in statistics]))
    # Also the process that computed them reads them back: all go on from the same numbers.
    found: list[LayerStatistics] = read_json(path, list[LayerStatistics])
    return found


@torch.no_grad()
def layer_statistics(model: Any, batches: Iterable[dict[str, Any]]) -> list[LayerStatistics]:
    """Gather the statistics of every layer with self-attention.

    Args:
        model: The stock model.
        batches: Inputs of `generate`, left-padded.
    """
    ends = torch.tensor(sorted(end_ids(model)), dtype=torch.long)
    backbone = find_backbone(model)
    readers = [_LayerReader(index, backbone.layers[index]) for index in steerable_layers(backbone)]
    try:
        for inputs in batches:
            for reader in readers:
                reader.begin(inputs.get("attention_mask"))
            written = model.generate(**inputs, max_new_tokens=_ANSWER_TOKENS, do_sample=False, num_beams=1)
            new = without_prompt(written, inputs["input_ids"]).cpu()
            for reader in readers:
                # The forward at step t reads token t: it counts while the answer goes on.
                reader.end(torch.isin(new, ends).cumsum(1) == 0)
    finally:
        for reader in readers:
            for hook in reader.hooks:
                hook.remove()
    if not readers[0].cards:
        raise ValueError("no image to look at")
    found = []
    for reader in readers:
        cards = torch.cat(reader.cards).double()
        count = len(cards)
        # All pairs of images, without those of an image with itself.
        between = float(cards.sum(0).square().sum() - count) / max(1, count * (count - 1))
        update_norm, leverage = torch.cat(reader.prompts, dim=1).double().mean(1).tolist()
        cosines, lengths = torch.cat(reader.answers, dim=1)
        found.append(
            LayerStatistics(
                layer=reader.index,
                update_norm=update_norm,
                leverage=leverage,
                hidden_norm=float(lengths.median()),
                alignment=float(cosines.mean()),
                specificity=1 - between if count > 1 else 0.0,
            )
        )
    return found


class _LayerReader:
    """Hooks on one layer."""

    def __init__(self, index: int, layer: nn.Module) -> None:
        update = attention_update(layer)
        self.index, self._multiplier = index, update.multiplier
        self.cards: list[Tensor] = []  # of the prompts, (rows, hidden size) for each batch
        self.prompts: list[Tensor] = []  # length and relative length of their updates, (2, rows) for each batch
        self.answers: list[Tensor] = []  # cosine with CARD and length of hidden states, (2, positions) for each step
        before = layer.register_forward_pre_hook(self._before, with_kwargs=True)
        self.hooks = (before, update.module.register_forward_hook(self._after))

    def begin(self, mask: Tensor | None) -> None:
        """Begin a batch; `mask` marks the real positions of its prompts."""
        self._mask = mask
        self._card: Tensor | None = None
        self._steps: list[Tensor] = []

    def end(self, running: Tensor) -> None:
        """End a batch; `running` says for each row and step whether its answer goes on."""
        assert self._card is not None
        self.cards.append(self._card.cpu())
        for step, seen in enumerate(self._steps):
            self.answers.append(seen.cpu()[:, running[:, min(step, running.shape[1] - 1)]])

    def _before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._h: Tensor = args[0] if args else kwargs["hidden_states"]

    def _after(self, module: Any, args: Any, output: Any) -> None:
        h = self._h.float()
        if self._card is not None:
            cosines = similarity(h[:, -1:], self._card.unsqueeze(-1)).flatten()
            self._steps.append(torch.stack([cosines, h[:, -1].norm(dim=-1)]))
            return
        update = self._multiplier * (output[0] if isinstance(output, tuple) else output).float()
        mask = self._mask if self._mask is not None and self._mask.shape == update.shape[:2] else None
        weights = torch.ones(update.shape[:2], device=update.device) if mask is None else (mask > 0).float()
        lengths, total = update.norm(dim=-1) * weights, weights.sum(1)
        relative = torch.where(weights > 0, lengths / h.norm(dim=-1).clamp_min(1e-12), 0.0)
        self._card = unit(pool_updates(update, mask))
        self.prompts.append(torch.stack([lengths.sum(1) / total, relative.sum(1) / total]).cpu())
