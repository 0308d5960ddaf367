"""The plan of a forward: which positions are prompt, and which are steered."""

from __future__ import annotations

import torch

from rudder_hf import RudderConfig
from rudder_hf.core.call import resolve_settings
from rudder_hf.core.state import GenerationState


def test_without_a_cache_the_prompt_is_read_once() -> None:
    settings = resolve_settings(RudderConfig(), None, 1)
    state = GenerationState(layer=0, settings=settings, with_image=[True], prompt_length=4, remaining_prompt=4)
    for length, read, steered in ((4, (0, 4), 0), (5, (4, 4), 1), (6, (4, 4), 2)):
        state.plan(torch.zeros(1, length, dtype=torch.long), length, None, cached=False)
        assert state.prompt_span == read
        assert state.steer_count == steered
        state.fired = True  # as the layer's hook leaves it
