"""Train an embedded model: `python -m tools.train_scenes [--family llava] --seed 0 --out FOLDER`.

Three stages. First the vision tower and the connector learn to name what each patch shows, in the embeddings of
the decoder, as in LLaVA's first stage. Then the tower is frozen and connector and decoder learn captions and
questions. At last the decoder's layers also learn to be read as words (see `losses`). Schedules are in steps and data
follow from the step, so a seed gives one model where matrix products are rounded alike, and a run that was stopped
goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedModel, ProcessorMixin

from rudder_hf.scenes.images import train_scene
from rudder_hf.scenes.world import PLACES

from . import card
from .batches import WordIds, make_batch
from .drift import MILD, STRONG, Drift, dense_scene
from .families import FAMILIES, WIDTH
from .losses import decoder_losses, vision_losses
from .stages import Stage, run_stage


@dataclass(frozen=True)
class Recipe:
    """All numbers of a training run."""

    family: str = "llava"
    seed: int = 0
    vision_steps: int = 700
    vision_batch: int = 48
    vision_rate: float = 1.5e-3
    steps: int = 900
    batch: int = 16
    rate: float = 1.5e-3
    warmup: int = 60
    decay: int = 350
    vision_decay: int = 500
    phases: tuple[tuple[int, Drift], ...] = ((0, MILD), (450, STRONG))  # from which step how much drift
    lens_from: int | None = None  # from which step of the decoder its layers learn to be read as words
    lens_steps: int = 250  # of a stage of its own
    lens_rate: float = 1e-3
    lens_warmup: int = 30
    lens_decay: int = 120


def vision_stage(recipe: Recipe, model: PreTrainedModel, words: WordIds) -> Stage:
    """Tower, projector and word embeddings learn to name the patches."""
    family = FAMILIES[recipe.family]
    place_head = nn.Linear(WIDTH, len(PLACES))
    parts = (family.tower(model), family.connector(model), model.get_input_embeddings())
    learned = [p for part in (*parts, place_head) for p in part.parameters()]

    def losses(step: int) -> dict[str, Tensor]:
        numbers = range(step * recipe.vision_batch, (step + 1) * recipe.vision_batch)
        scenes = [(dense_scene if number % 3 else train_scene)(recipe.seed, number) for number in numbers]
        return vision_losses(family, model, place_head, scenes, words)

    both = nn.ModuleDict({"model": model, "place_head": place_head})
    return Stage(
        "vision", both, learned, losses, recipe.vision_steps, recipe.vision_rate, recipe.warmup, recipe.vision_decay
    )


def decoder_stage(recipe: Recipe, model: PreTrainedModel, words: WordIds) -> Stage:
    """Projector and decoder learn captions and questions; the drift starts mild."""

    def drift(step: int) -> Drift:
        return next(drift for start, drift in reversed(recipe.phases) if step >= start)

    schedule = (recipe.steps, recipe.rate, recipe.warmup, recipe.decay)
    start = recipe.steps if recipe.lens_from is None else recipe.lens_from
    return _captions_stage("decoder", recipe, model, words, schedule, drift, seen=0, lens_from=start)


def lens_stage(recipe: Recipe, model: PreTrainedModel, words: WordIds) -> Stage:
    """The decoder's layers also learn to be read as words, on new scenes and from a raised rate."""
    schedule = (recipe.lens_steps, recipe.lens_rate, recipe.lens_warmup, recipe.lens_decay)
    return _captions_stage("lens", recipe, model, words, schedule, lambda step: STRONG, seen=recipe.steps, lens_from=0)


def _captions_stage(
    name: str, recipe: Recipe, model: PreTrainedModel, words: WordIds, schedule: tuple[int, float, int, int],
    drift: Callable[[int], Drift], seen: int, lens_from: int,
) -> Stage:  # fmt: skip
    """A stage on captions and questions, with steps, rate, warm-up and decay, after `seen` other steps on them."""
    family = FAMILIES[recipe.family]
    decoder: Any = family.decoder(model)
    learned = [*family.connector(model).parameters(), *decoder.parameters()]
    matrices = {p for p in decoder.layers.parameters() if p.ndim == 2}
    slow = dict.fromkeys(family.connector(model).parameters(), family.connector_rate)

    def losses(step: int) -> dict[str, Tensor]:
        first = recipe.vision_steps * recipe.vision_batch + (seen + step) * recipe.batch
        scenes = [train_scene(recipe.seed, number) for number in range(first, first + recipe.batch)]
        return decoder_losses(family, model, make_batch(scenes, words, drift(step)), words, step >= lens_from)

    return Stage(name, model, learned, losses, *schedule, matrices, slow)


def _start(recipe: Recipe, out: Path) -> None:
    """Make the folder, or check that the run in it is this one."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(recipe), indent=2) + "\n"
    path = out / "recipe.json"
    if path.is_file() and path.read_text() != text:
        raise ValueError(f"{out} holds a run with another recipe; choose an empty folder or delete it to start anew")
    path.write_text(text)


def save(model: PreTrainedModel, processor: ProcessorMixin, out: Path) -> None:
    """Write the model in half precision; its config asks for float32, so that it is loaded as such everywhere."""
    model.half().save_pretrained(out)  # type: ignore[no-untyped-call]
    processor.save_pretrained(out)
    path = out / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        part["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2) + "\n")


def train(recipe: Recipe, out: Path) -> dict[str, Any]:
    """All stages, then the measurements of the model as it was saved."""
    _start(recipe, out)
    family = FAMILIES[recipe.family]
    processor: Any = family.processor()
    words = WordIds(family, processor.tokenizer)
    model = family.model(recipe.seed, processor.tokenizer)
    seconds = run_stage(vision_stage(recipe, model, words), out)
    family.tower(model).requires_grad_(False)
    for make_stage in (decoder_stage, lens_stage):
        seconds += run_stage(make_stage(recipe, model, words), out)
    save(model, processor, out)
    saved: Any = AutoModelForImageTextToText.from_pretrained(out)
    reader: Any = AutoProcessor.from_pretrained(out)  # type: ignore[no-untyped-call]
    return card.finish(saved, reader, asdict(recipe), seconds, out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the embedded model of rudder_hf.")
    parser.add_argument("--family", choices=sorted(FAMILIES), default=Recipe.family)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--out", type=Path, required=True, help="new folder, or that of a stopped run to go on with")
    parser.add_argument("--vision-steps", type=int, default=None, help="by default what suits the family")
    parser.add_argument("--steps", type=int, default=None, help="of the decoder; by default what suits the family")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads; by default torch decides")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    family = FAMILIES[arguments.family]
    recipe = Recipe(
        family=family.name,
        seed=arguments.seed,
        vision_steps=arguments.vision_steps or family.vision_steps,
        steps=arguments.steps or family.steps,
        lens_from=family.lens_from,
        lens_steps=family.lens_steps,
    )
    metrics = train(recipe, arguments.out)
    print(json.dumps(metrics["vanilla"], indent=2))


if __name__ == "__main__":
    main()
