"""What is tried, and the search among it: candidates run on the images to choose with, the same for every method.

A candidate is a method like any other.

```python
run = Run(folder).begin(task, loaded, Decoding("greedy", 64), RunOptions(likelihood="none"))
found = search(run, {"vcd": [methods.get("vcd", alpha=alpha) for alpha in (0.25, 0.5, 1.0)]}, Rule())
found["vcd"].best  # place of the chosen one in the list, None if none beats vanilla within the limits
```

Strengths are relative to the hidden states of a layer. Their length, and that of what attention adds to them, is read
for all layers in one pass, while the unsteered model reads the prompts and writes the first tokens of its answers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.backbones import attention_update, find_backbone, steerable_layers
from ..core.settings import CONTRAST_DEFAULTS, check_setting
from ..evaluate.methods import Prompts
from ..evaluate.result import Scoring
from ..evaluate.run import Batch, Run, RunOptions, Variant
from ..evaluate.tasks import Sample, batches, encode_samples
from ..methods import Method, Sources, get
from ..methods.contrast import Contrast, RudderContrast
from ..methods.rudder import Attached, RudderAdd, RudderBeta, absolute_strength
from ..runtime.answers import end_ids, without_prompt
from ..runtime.errors import InputError, check_least
from ..runtime.models import LoadedModel
from ..runtime.report import Progress, followed, no_progress
from .choice import OBJECTIVES, Choice, Rule, choose, in_words

VANILLA_METHOD = get("vanilla")
_ANSWER_TOKENS = 16
_BATCH = 20
_KEY = "layers"  # by which a run keeps their statistics


@dataclass(frozen=True)
class Grid:
    """The values that are combined at each layer."""

    strengths: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)  # alpha_max as a share of the hidden state's median length
    k: tuple[float, ...] = (5.0, 8.0)  # sensitivities of the gate; mode "add" has none
    # Image-value contrasts, which are not in the paper; those above 0 are also tried without a push
    contrast: tuple[float, ...] = (0.0,)
    modes: tuple[str, ...] = ("beta",)

    def __post_init__(self) -> None:
        for name, values in asdict(self).items():
            if not values:
                raise InputError(f"the grid has no {name}: give at least one value")
            for value in values if name in ("k", "contrast") else ():
                check_setting(name, value)
        if max(self.contrast) and "add" in self.modes:
            raise InputError("--contrast goes with --mode beta: leave one of them out")
        for share in self.strengths:
            if not 0 <= share < math.inf or (share == 0 and not max(self.contrast)):
                raise InputError(
                    f"the grid has the strength {share}; give shares above 0, such as 0.3 (0 goes with a contrast: it "
                    "is then tried alone)"
                )

    @property
    def pushes(self) -> list[float]:
        """The strengths above 0, the gentlest first."""
        return sorted({share for share in self.strengths if share > 0})

    @property
    def alone(self) -> list[Method]:
        """The contrasts without a push."""
        return [Contrast(contrast=value) for value in sorted(set(self.contrast)) if value]

    def candidates(self, layer: int, hidden_norm: float) -> list[Method]:
        """All combinations for a layer whose hidden states have this length."""
        found: list[Method] = []
        for share in self.pushes:
            shared: dict[str, Any] = {"layer": layer, "alpha_max": absolute_strength(share, hidden_norm)}
            if "add" in self.modes:
                found.append(RudderAdd(**shared))
            for k in sorted(set(self.k)) if "beta" in self.modes else ():
                found += [
                    RudderContrast(**shared, k=k, contrast=contrast) if contrast else RudderBeta(**shared, k=k)
                    for contrast in sorted(set(self.contrast))
                ]
        return found

    def probes(self, layer: int, hidden_norm: float) -> list[Method]:
        """A mild and a stronger candidate to compare layers by: a third and two thirds up the strengths, in the
        middle of k.
        """
        strengths, ks = self.pushes, sorted(set(self.k))
        places = {len(strengths) // 3, min(2 * len(strengths) // 3, len(strengths) - 1)}
        few = Grid(tuple(strengths[place] for place in places), (ks[len(ks) // 2],), modes=self.modes)
        return few.candidates(layer, hidden_norm)


def tie_break_key(method: Method) -> tuple[Any, ...]:
    """Order of preference: the weakest push, least contrast, gated before constant, flattest gate, earliest layer."""
    assert isinstance(method, Attached)
    config = method.rudder_config()
    return config.alpha_max, config.contrast, config.mode == "add", config.k, config.layer


def describe(method: Method) -> str:
    """A candidate in one line: layer, strength, and what differs from the defaults."""
    assert isinstance(method, Attached)
    return method.rudder_config().expression().removeprefix("RudderConfig(").removesuffix(")")


def control(kind: type[Method], own: Attached, loaded: LoadedModel, prompts: Prompts) -> Method:
    """A control with the settings of the method that it is a control of; `prompts` gives inputs with other images."""
    config = own.rudder_config()
    given = {"config": config, "mode": config.mode, **{name: getattr(config, name) for name in CONTRAST_DEFAULTS}}
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind.for_model(
        loaded.model, Sources(prompts=prompts), **{name: value for name, value in given.items() if name in names}
    )


@dataclass(frozen=True)
class CalibrationOptions:
    """How to calibrate."""

    grid: Grid = field(default_factory=Grid)
    layers: tuple[int, ...] | None = None  # layers to try; None takes a short list
    shortlist: int = 3  # its length
    probe: int = 40  # images of the sweep over all layers that the list comes from
    rule: Rule = field(default_factory=Rule)
    max_new_tokens: int | None = None  # longest answer; None is the task's own
    run: RunOptions = field(default_factory=lambda: RunOptions(24))

    def __post_init__(self) -> None:
        check_least(self, probe=1, shortlist=1)


def search(
    run: Run, candidates: Mapping[str, Sequence[Method]], rule: Rule, progress: Progress = no_progress,
    first: int | None = None,
) -> dict[str, Choice[int]]:  # fmt: skip
    """Choose one of several candidates, or none, for each name; what is chosen is a place in its list.

    Args:
        run: On the images to choose with, after `begin`.
        candidates: For each name, what to choose from, gentle first: among equals the first is chosen.
        rule: What to choose by.
        progress: Is called with how many answers there are.
        first: Use this many of the images only.

    Raises:
        InputError: The images have no annotations and the objective needs them.
    """
    if rule.labelled and run.task.kind != "chair":
        raise InputError(f"{rule.objective} needs annotations, and there are none: use --objective grounding")
    everything = [VANILLA_METHOD, *(method for methods in candidates.values() for method in methods)]
    run.answer(everything, progress, first, wait=True)
    scored = run.scored([Variant.of(method) for method in everything], Scoring(), first)
    counts = iter([own.counts for own in scored])
    vanilla = next(counts)
    return {
        name: choose({place: next(counts) for place in range(len(methods))}, vanilla, rule)
        for name, methods in candidates.items()
    }


def best_layers(
    run: Run, statistics: Sequence[LayerStatistics], options: CalibrationOptions, progress: Progress = no_progress
) -> tuple[list[int], str]:
    """Layers worth the grid, best first, by a sweep of a few candidates over all layers on the first images; and why.

    Args:
        run: As for `search`.
        statistics: Of every layer; of layers that are equally good the earlier one is taken.
        options: Grid, rule, how many layers, and how many images.
        progress: Is called with how many answers there are.
    """
    probes = {str(s.layer): options.grid.probes(s.layer, s.hidden_norm) for s in statistics}
    quick = replace(options.rule, bootstrap=1, confidence=0.0)
    best = {name: found.score for name, found in search(run, probes, quick, progress, options.probe).items()}
    sign = -1 if OBJECTIVES[options.rule.objective].higher_is_better else 1
    ranked = sorted(statistics, key=lambda s: sign * best[str(s.layer)])[: options.shortlist]
    values = ", ".join(f"layer {s.layer} ({best[str(s.layer)]:.4f})" for s in ranked)
    return [s.layer for s in ranked], (
        f"{in_words(options.rule.objective)} in a sweep of {len(next(iter(probes.values())))} candidates for each "
        f"layer on {min(options.probe, len(run.task.samples))} images: {values}"
    )


# Layers


@dataclass(frozen=True)
class LayerStatistics:
    """What is known of a layer, averaged over images."""

    layer: int  # its index
    update_norm: float  # mean length of the attention update over prompt positions, ||delta||
    leverage: float  # mean of ||delta|| / ||h|| over prompt positions
    hidden_norm: float  # median length of the hidden state at answer positions: strengths are relative to it


def stored_layer_statistics(
    run: Run, samples: Sequence[Sample], progress: Progress = no_progress
) -> list[LayerStatistics]:
    """Statistics of every layer: from a run's folder, else from one pass over the samples by its first process."""

    def found() -> list[Any]:
        return [batch.settings["layers"] for batch in run.batches(Batch) if batch.key == _KEY]

    if not found() and run.process.rank:
        run.wait(lambda: not found())
    elif not found():
        parts = followed(batches(samples, _BATCH), "layer statistics", progress)
        statistics = layer_statistics(run.loaded.model, (encode_samples(run.loaded, run.task, part) for part in parts))
        with run:
            run.append(asdict(Batch(_KEY, "", {"layers": [asdict(entry) for entry in statistics]}, 0.0, [])))
    # Also the process that computed them reads them back: all go on from the same numbers.
    return [LayerStatistics(**entry) for entry in found()[0]]


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
    if not readers[0].prompts:
        raise ValueError("no image to look at")
    found = []
    for reader in readers:
        update_norm, leverage = torch.cat(reader.prompts, dim=1).double().mean(1).tolist()
        found.append(LayerStatistics(reader.index, update_norm, leverage, float(torch.cat(reader.answers).median())))
    return found


class _LayerReader:
    """Hooks on one layer."""

    def __init__(self, index: int, layer: nn.Module) -> None:
        update = attention_update(layer)
        self.index, self._multiplier = index, update.multiplier
        self.prompts: list[Tensor] = []  # length and relative length of their updates, (2, rows) for each batch
        self.answers: list[Tensor] = []  # length of hidden states, (positions,) for each step
        before = layer.register_forward_pre_hook(self._before, with_kwargs=True)
        self.hooks = (before, update.module.register_forward_hook(self._after))

    def begin(self, mask: Tensor | None) -> None:
        """Begin a batch; `mask` marks the real positions of its prompts."""
        self._mask = mask
        self._steps: list[Tensor] | None = None  # None until the prompts are read

    def end(self, running: Tensor) -> None:
        """End a batch; `running` says for each row and step whether its answer goes on."""
        for step, lengths in enumerate(self._steps or ()):
            self.answers.append(lengths.cpu()[running[:, min(step, running.shape[1] - 1)]])

    def _before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._h: Tensor = args[0] if args else kwargs["hidden_states"]

    def _after(self, module: Any, args: Any, output: Any) -> None:
        h = self._h.float()
        if self._steps is not None:
            self._steps.append(h[:, -1].norm(dim=-1))
            return
        self._steps = []
        update = self._multiplier * (output[0] if isinstance(output, tuple) else output).float()
        mask = self._mask if self._mask is not None and self._mask.shape == update.shape[:2] else None
        weights = torch.ones(update.shape[:2], device=update.device) if mask is None else (mask > 0).float()
        lengths, total = update.norm(dim=-1) * weights, weights.sum(1)
        relative = torch.where(weights > 0, lengths / h.norm(dim=-1).clamp_min(1e-12), 0.0)
        self.prompts.append(torch.stack([lengths.sum(1) / total, relative.sum(1) / total]).cpu())
