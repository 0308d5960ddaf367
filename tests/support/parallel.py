"""One of two processes that share a model: python -m tests.support.parallel {tp,fsdp} FOLDER

The folder has a model and takes what each process generated, steered, traced and unsteered.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText

from rudder_hf import attach
from tests.support.helpers import OTHER_ROW, ROW, family_of, logits, run, settings


def main(way: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    plan = {"tp_plan": "auto"} if way == "tp" else {}
    model = AutoModelForImageTextToText.from_pretrained(folder / "model", **plan)
    family = family_of("llava")
    if way == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        # Not the whole model: `generate` calls its vision tower by itself, which FSDP2 does not expect.
        for layer in model.get_submodule(family.layers):
            fully_shard(layer, mesh=mesh)
    # Before they are used: FSDP2 may leave them whole afterwards.
    sharded = [name for name, weight in model.named_parameters() if type(weight).__name__ == "DTensor"]
    inputs = family.inputs(model, [ROW, OTHER_ROW])
    vanilla = run(model, inputs)
    with attach(model, settings()):
        steered, off = run(model, inputs, output_rudder=True), run(model, inputs, rudder=False)
    result = {
        "sequences": steered.sequences,
        "logits": logits(steered),
        "card": steered.rudder.card,
        "gate": steered.rudder.gate.nan_to_num(),
        "vanilla": logits(vanilla),
        "off": logits(off),
        "sharded": torch.tensor(len(sharded)),
    }
    save_file({name: value.contiguous() for name, value in result.items()}, folder / f"{dist.get_rank()}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
