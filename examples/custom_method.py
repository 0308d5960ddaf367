"""Add a decoding method of your own: guidance by what an object detector saw, in the manner of MARINE.

A method is a frozen dataclass of its settings, which also declares its costs and what it is tuned on. This one
derives from `LoopMethod`, which runs transformers' own token loop, and says in `prepare` what it changes in it: a side
branch reads a second prompt, which names the detected objects, and the logits l of the loop become l + gamma (l' - l)
with l' the side branch's. The branch has a cache of its own, which follows the beams; batches, left padding, sampling
and streaming need nothing more.

The detector is not part of the method: objects are looked up by the ids of the samples, which you pass as
`sample_ids`. Run `python examples/custom_method.py`: it takes the embedded model, and for a detector the
annotations of its example images.

To see: the answers with guidance differ from vanilla's. (!) marks objects that are not in the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForImageTextToText, AutoProcessor

from rudder_hf.methods import Branch, LoopMethod, Run, get, grid, number
from rudder_hf.metrics.chair import marked
from rudder_hf.scenes import embedded
from rudder_hf.scenes.captions import noun


@dataclass(frozen=True)
class DetectorGuidance(LoopMethod):
    """Guide each answer by the objects that a detector found in the sample's image.

    Attributes:
        objects: For each sample the token ids of a sentence that names its objects.
        gamma: Strength of the guidance; 0 is vanilla.
    """

    name = "detector-guidance"
    # Each token is forwarded with both prompts, and the second prompt is prefilled too.
    forwards_per_token = 2.0
    extra_prefills = 1
    # What `rudder compare` and `MethodSearch` tune the method on, gentle first.
    searched = grid(gamma=(0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.2, 1.5))

    objects: Mapping[str, Sequence[int]] = field(default_factory=dict, compare=False)
    gamma: float = number(0.7, 0, 10)

    def prepare(self, run: Run) -> None:
        """Set up one `generate` call."""
        if unknown := [name for name in run.sample_ids if name not in self.objects]:
            raise ValueError(f"{self.name} has no objects for {unknown[0]!r}: pass sample_ids=[...].")
        run.branch = Branch.prepare(run.backbone.model, {**run.arguments, **self.guided_prompts(run)})
        run.on_logits = lambda logits: logits + self.gamma * (run.advance_branch() - logits)

    def guided_prompts(self, run: Run) -> dict[str, Tensor]:
        """The prompts with the objects' sentence after each, left-padded.

        Where a processor returns more than these two for each token (Qwen's `mm_token_type_ids`), extend that too.
        """
        prompts = []
        rows = zip(run.sample_ids, run.arguments["input_ids"], run.arguments["attention_mask"], strict=True)
        for name, ids, mask in rows:
            prompts.append(torch.cat([ids[mask.bool()], ids.new_tensor(list(self.objects[name]))]))
        width = max(len(prompt) for prompt in prompts)
        return {
            "input_ids": torch.stack([pad(prompt, (width - len(prompt), 0)) for prompt in prompts]),
            "attention_mask": torch.stack(
                [pad(torch.ones_like(prompt), (width - len(prompt), 0)) for prompt in prompts]
            ),
        }


def main() -> None:
    model: Any = AutoModelForImageTextToText.from_pretrained(embedded.folder())
    processor: Any = AutoProcessor.from_pretrained(embedded.folder())
    scenes = {f"example {number}": scene for number, scene in enumerate(embedded.examples()[:2], start=1)}
    images = [embedded.draw(scene) for scene in scenes.values()]
    question = {"type": "text", "text": "Please help me describe the image in detail"}
    conversation = [{"role": "user", "content": [{"type": "image"}, question]}]
    inputs = processor(
        text=[processor.apply_chat_template(conversation, add_generation_prompt=True)] * len(images),
        images=images,
        add_special_tokens=False,
        return_tensors="pt",
    )

    def seen_by_the_detector(names: Sequence[str]) -> list[int]:
        sentence = f"I can see {noun(names[0])}."
        ids: list[int] = processor.tokenizer(sentence, add_special_tokens=False).input_ids
        return ids

    objects = {name: seen_by_the_detector(scene.names) for name, scene in scenes.items()}
    methods = [get("vanilla"), get("vcd"), DetectorGuidance(objects=objects)]
    for method in methods:
        with method.applied(model) as generate:
            output = generate(**inputs, sample_ids=list(objects), max_new_tokens=64, do_sample=False)
        answers = processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        for name, answer in zip(objects, answers, strict=True):
            print(f"{method.name:18} {name}: {marked(answer.strip(), frozenset(scenes[name].names))}")


if __name__ == "__main__":
    main()
