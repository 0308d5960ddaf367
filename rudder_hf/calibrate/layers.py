"""What every layer's attention adds to the residual stream, gathered for all layers in one plain pass.

The paper chooses the layer by how well CARD is aligned with what the model does later, and looks at the length of the
updates, absolute and relative to the hidden state, and at their coherence within groups of layers. All of it is read
here from the unsteered model, while it reads the prompts and writes the first tokens of its answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.backbones import attention_update, find_backbone, steerable_layers
from ..core.steering import pool_updates, similarity, unit
from ..evaluate.tasks import Sample, Task
from ..runtime.inputs import end_ids, without_prompt
from ..runtime.models import Subject
from ..runtime.progress import Progress, no_progress
from ..runtime.store import read_json, to_json, write_new
from .data import batches, encode_samples

_ANSWER_TOKENS = 16
_GROUPS = 4
_BATCH = 20


@dataclass(frozen=True)
class LayerStatistics:
    """What is known of a layer, averaged over images.

    Attributes:
        layer: Its index.
        update_norm: Mean length of the attention update over prompt positions, ||delta||.
        leverage: Mean of ||delta|| / ||h|| over prompt positions.
        hidden_norm: Median length of the hidden state at answer positions: strengths are relative to it.
        alignment: Mean cosine of CARD and the hidden state at answer positions, s_t as the gate sees it.
        concentration: ||sum of updates|| / sum of ||updates|| over the prompt: how far one direction, CARD, speaks
            for all updates.
        specificity: 1 - mean cosine between CARDs of different images: how much of CARD is about the image.
        coherence: Mean cosine between this layer's CARD and those of the other layers of its group.
    """

    layer: int
    update_norm: float
    leverage: float
    hidden_norm: float
    alignment: float
    concentration: float
    specificity: float
    coherence: float

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @property
    def rank_score(self) -> float:
        """What layers are ranked by without decoding anything.

        The paper's criterion, alignment of CARD with the states that it will be added to, is weighed with how much of
        CARD is about the image: a direction that is the same for every image is aligned with everything.
        """
        return max(self.alignment, 0.0) * self.specificity


def layer_groups(layers: int) -> list[int]:
    """For each of so many layers the group it belongs to: quarters of the depth."""
    return [min(_GROUPS - 1, place * _GROUPS // layers) for place in range(layers)]


def shortlist(statistics: Sequence[LayerStatistics], count: int) -> tuple[list[int], str]:
    """Layers worth a grid, best first, and why."""
    ranked = sorted(statistics, key=lambda s: -s.rank_score)[:count]
    values = ", ".join(f"layer {s.layer} ({s.alignment:.3f} x {s.specificity:.3f})" for s in ranked)
    return [s.layer for s in ranked], f"largest alignment x specificity of CARD: {values}"


def stored_layer_statistics(
    path: Path, subject: Subject, task: Task, samples: Sequence[Sample], progress: Progress = no_progress
) -> list[LayerStatistics]:
    """Statistics of every layer: from a file, else from one pass over the samples, which one process writes there."""
    if not path.exists():

        def inputs() -> Iterator[dict[str, Any]]:
            for number, part in enumerate(parts):
                progress("layer statistics", number, len(parts))
                yield encode_samples(subject, task, part)

        parts = batches(samples, _BATCH)
        write_new(path, to_json([entry.record() for entry in layer_statistics(subject.model, inputs())]))
    # Also the process that computed them reads them back: all go on from the same numbers.
    return [LayerStatistics(**record) for record in read_json(path)]


@torch.no_grad()
def layer_statistics(model: Any, batches: Iterable[dict[str, Any]]) -> list[LayerStatistics]:
    """Gather the statistics of every layer with self-attention.

    Args:
        model: The stock model.
        batches: Inputs of `generate`, left-padded.
    """
    ends = torch.tensor(sorted(end_ids(model)), dtype=torch.long)
    with _Reader(model) as reader:
        gathered = _Gathered(len(reader.layers))
        for inputs in batches:
            reader.begin(inputs.get("attention_mask"))
            written = model.generate(**inputs, max_new_tokens=_ANSWER_TOKENS, do_sample=False, num_beams=1)
            new = without_prompt(written, inputs["input_ids"]).cpu()
            # The forward at step t reads token t: it counts while the answer goes on.
            gathered.add(reader, torch.isin(new, ends).cumsum(1) == 0)
        return gathered.statistics(reader.layers)


class _Reader:
    """Hooks on every layer with self-attention, for one batch at a time."""

    def __init__(self, model: nn.Module) -> None:
        self._backbone = find_backbone(model)
        self.layers = steerable_layers(self._backbone)
        self._handles: list[Any] = []
        self.begin(None)

    def begin(self, mask: Tensor | None) -> None:
        """Forget the last batch; `mask` marks the prompt's real positions in the next."""
        self._mask = mask
        self.prompt: dict[int, dict[str, Tensor]] = {}
        self.steps: dict[int, list[tuple[Tensor, Tensor]]] = {place: [] for place in range(len(self.layers))}
        self._h: Tensor = torch.empty(0)

    def __enter__(self) -> _Reader:
        for place, index in enumerate(self.layers):
            layer = self._backbone.layers[index]
            update = attention_update(layer)

            def after(
                module: Any, args: Any, output: Any, place: int = place, factor: float = update.multiplier
            ) -> None:
                self._read(place, factor * (output[0] if isinstance(output, tuple) else output))

            self._handles.append(layer.register_forward_pre_hook(self._before, with_kwargs=True))
            self._handles.append(update.module.register_forward_hook(after))
        return self

    def __exit__(self, *exception: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._h = args[0] if args else kwargs["hidden_states"]

    def _read(self, place: int, update: Tensor) -> None:
        h = self._h.float()
        if place in self.prompt:
            card = self.prompt[place]["card"]
            self.steps[place].append((similarity(h, card.unsqueeze(-1))[:, -1, 0], h[:, -1].norm(dim=-1)))
            return
        update = update.float()
        mask = self._mask if self._mask is not None and self._mask.shape == update.shape[:2] else None
        weights = torch.ones(update.shape[:2], device=update.device) if mask is None else (mask > 0).float()
        lengths, total = update.norm(dim=-1) * weights, weights.sum(1)
        pooled = pool_updates(update, mask)
        relative = torch.where(weights > 0, lengths / h.norm(dim=-1).clamp_min(1e-12), 0.0)
        self.prompt[place] = {
            "card": unit(pooled),
            "update_norm": lengths.sum(1) / total,
            "leverage": relative.sum(1) / total,
            "concentration": pooled.norm(dim=-1) / lengths.sum(1).clamp_min(1e-12),
        }


class _Gathered:
    """Sums over images."""

    def __init__(self, layers: int) -> None:
        self.count = 0
        self.groups = layer_groups(layers)
        means = ("update_norm", "leverage", "concentration", "coherence")
        self.sums = {name: torch.zeros(layers, dtype=torch.float64) for name in means}
        self.alignment: list[list[Tensor]] = [[] for _ in range(layers)]
        self.lengths: list[list[Tensor]] = [[] for _ in range(layers)]
        self.cards: Tensor = torch.zeros(layers, 1, dtype=torch.float64)

    def add(self, reader: _Reader, running: Tensor) -> None:
        """Add one batch; `running` says for each row and step whether its answer goes on."""
        read = [reader.prompt[place] for place in range(len(self.groups))]
        cards = torch.stack([layer["card"].cpu() for layer in read]).double()
        self.count += cards.shape[1]
        self.cards = self.cards + cards.sum(1)
        for name in ("update_norm", "leverage", "concentration"):
            self.sums[name] += torch.stack([layer[name].double().sum().cpu() for layer in read])
        between = torch.einsum("lnd,mnd->lmn", cards, cards).sum(-1)
        for place, group in enumerate(self.groups):
            others = [o for o, g in enumerate(self.groups) if g == group and o != place]
            self.sums["coherence"][place] += between[place, others].mean() if others else cards.shape[1]
        for place, steps in reader.steps.items():
            for step, (cosines, lengths) in enumerate(steps):
                keep = running[:, min(step, running.shape[1] - 1)]
                self.alignment[place].append(cosines.cpu()[keep])
                self.lengths[place].append(lengths.cpu()[keep])

    def statistics(self, layers: Sequence[int]) -> list[LayerStatistics]:
        """The averages."""
        if not self.count:
            raise ValueError("no image to look at")
        pairs = self.count * (self.count - 1)
        between = (self.cards.square().sum(-1) - self.count) / pairs if pairs else torch.ones(len(layers))
        return [
            LayerStatistics(
                layer=layer,
                hidden_norm=float(torch.cat(self.lengths[place]).median()),
                alignment=float(torch.cat(self.alignment[place]).mean()),
                specificity=float(1 - between[place]),
                **{name: float(sums[place] / self.count) for name, sums in self.sums.items()},
            )
            for place, layer in enumerate(layers)
        ]
