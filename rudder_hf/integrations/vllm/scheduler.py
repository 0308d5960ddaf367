"""The prefix cache: what steering changed is not shared with others. And the counting of requests.

Up to the target layer nothing depends on steering, and behind it only positions that were steered do. So the blocks of
a prompt are shared as ever, between settings too, and a block that holds a steered position is known by a name that no
other request has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from ...core.call import CallSettings
from .engine import logger, require
from .metrics import count
from .planning import private_hashes
from .settings import KEY, decide, engine_settings


class RudderScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, with names of its own for the blocks of steered answers."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Create the variant that the engine's config asks for."""
        ahead = vllm_config.scheduler_config.async_scheduling
        return super().__new__(RudderAsyncScheduler if ahead and cls is RudderScheduler else cls)

    def __init__(self, vllm_config: Any, *args: Any, hash_block_size: int, **kwargs: Any) -> None:
        require(Scheduler, "add_request", "schedule", "_preempt_request")
        super().__init__(vllm_config, *args, hash_block_size=hash_block_size, **kwargs)
        self.hashed_tokens = hash_block_size
        self.engine = engine_settings(vllm_config.additional_config[KEY])

    def add_request(self, request: Any) -> None:
        """Count a request, and rename its blocks if it is steered."""
        if request.resumable:
            logger.warning_once("RUDDER leaves prompts that are streamed in parts unsteered.")
            request.sampling_params.extra_args = {KEY: False}
        outcome, settings = self._decide(request)
        if request.request_id not in self.requests:
            count(outcome)
        if settings is not None and request._block_hasher is not None:
            # The position that emits the first token needs the sums of all blocks before it in the same forward.
            request.skip_reading_prefix_cache |= settings.steer_first_token
            self.separate(request, request.num_prompt_tokens - int(settings.steer_first_token))
        if request.resumable and request._block_hasher is not None:
            # A streamed prompt takes back tokens that it has computed ahead, which are counted in their block by then.
            request.skip_reading_prefix_cache = True
            self.separate(request, 0)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Send the images of new requests to the workers, also those whose tokens are in the prefix cache.

        vLLM leaves the pixels of these out. If such a request is preempted and then recomputed, as RUDDER lets steered
        requests do, and the encoder's output was dropped meanwhile, the worker stops the engine for want of them.
        """
        output = super().schedule(*args, **kwargs)
        for new in output.scheduled_new_reqs:
            new.mm_features = self.requests[new.req_id].mm_features
        return output

    def separate(self, request: Any, clean: int) -> None:
        """Give the blocks that reach beyond the first `clean` tokens names that only this request has."""
        hasher: Callable[[Any], list[bytes]] = request._block_hasher
        request._block_hasher = private_hashes(hasher, clean // self.hashed_tokens, request.request_id)
        # Full blocks of the prompt were named when the request was made.
        request.block_hashes = []
        request.update_block_hashes()

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Let a steered request read its whole prompt again when it resumes, with its answer so far."""
        super()._preempt_request(request, *args, **kwargs)
        if self._decide(request)[1] is not None:
            request.skip_reading_prefix_cache = True

    def _decide(self, request: Any) -> tuple[str, CallSettings | None]:
        return decide(self.engine, request.sampling_params.extra_args, request.mm_features)


class RudderAsyncScheduler(RudderScheduler, AsyncScheduler):  # type: ignore[misc]
    """RUDDER's scheduler for engines that schedule a step ahead of the model."""
