"""The worker of an engine, on a CPU or on a GPU, and the plan of each step in its model runner.

The runner knows which request is in which row of the batch; the layer's own context knows neither the request nor the
length of its prompt.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from ...core.backbones import image_token_ids
from . import misfit
from .buffers import Buffers
from .engine import logger, refuse, require
from .layers import install
from .operator import CONTEXT_NAME, define_operator
from .planning import Planned, Planner
from .requests import check_name
from .settings import KEY, EngineSettings, decide, engine_settings

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class SteeredRunner(GPUModelRunner):  # type: ignore[misc]
    """Methods that go before those of vLLM's first model runner (`vllm.v1.worker.gpu_model_runner`)."""

    planner_class: type[Planner] = Planner
    planner: Planner
    buffers: Buffers | None = None
    settings: EngineSettings
    _step: Any = None
    _unplanned: bool = False

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model and hook its target layer."""
        super().load_model(*args, **kwargs)
        define_operator()
        config = self.vllm_config
        # vLLM goes on changing its config after it was checked.
        refuse(config)
        if len(self.model_config.logits_processors or ()) == 1:
            # RUDDER's, which looks at no tokens: vLLM need not gather them for it at each step.
            self.input_batch.logitsprocs_need_output_token_ids = False
        self.settings = self._prepared()
        rudder = self.settings.config
        slots = config.scheduler_config.max_num_seqs
        # Most positions that a forward can have, padding included.
        captured = config.compilation_config.max_cudagraph_capture_size or 0
        tokens = int(max(config.scheduler_config.max_num_batched_tokens, captured))
        self.planner = self.planner_class(slots, tokens)
        model = self.get_model()
        target = install(model, self.model_config.architecture, rudder.layer)
        if target is None:
            logger.info("RUDDER: layer %d is in another stage of the pipeline.", rudder.layer)
            return
        hidden_size = self.model_config.hf_text_config.hidden_size
        self.buffers = Buffers(slots, hidden_size, tokens, self.device, rudder.pool == "norm", target.multiplier)
        self.buffers.neutral(self.planner)
        target.buffers = self.buffers
        config.compilation_config.static_forward_context[CONTEXT_NAME] = self.buffers
        logger.info("RUDDER steers layer %d (%s).", rudder.layer, self.settings)

    def _prepared(self) -> EngineSettings:
        """Return the engine's settings; raise where the config was not prepared, but names this worker."""
        settings = engine_settings(self.vllm_config.additional_config.get(KEY))
        if check_name(settings) not in (self.model_config.logits_processors or ()):
            raise ValueError(
                "RUDDER's plugin is switched off: the environment variable VLLM_PLUGINS names other plugins. Add "
                "rudder_hf to it, separated by a comma, or unset it."
            )
        return settings

    def initialize_kv_cache(self, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        """Make room for the sums of the prefix cache's blocks."""
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        if self.buffers is None or not self.vllm_config.cache_config.enable_prefix_caching:
            return
        groups = self.kv_cache_config.kv_cache_groups
        if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
            kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
            raise ValueError(
                "RUDDER sums up the blocks of one KV cache group that holds whole prompts, but this model has other "
                f"kinds of attention ({kinds}). Switch prefix caching off: --no-enable-prefix-caching."
            )
        self.planner.block_size = groups[0].kv_cache_spec.block_size
        self.planner.spare_block = self.kv_cache_config.num_blocks
        self.buffers.keep_blocks(self.kv_cache_config.num_blocks)
        self.buffers.neutral(self.planner)

    def _update_states(self, scheduler_output: Any) -> Any:
        """Follow requests as they come, go and come back."""
        found = super()._update_states(scheduler_output)
        if self.buffers is None:
            return found
        if self._unplanned:
            raise RuntimeError(misfit("its model ran without GPUModelRunner._model_forward being called"))
        for name in (*scheduler_output.finished_req_ids, *(scheduler_output.preempted_req_ids or ())):
            self.planner.release(name)
        for new in scheduler_output.scheduled_new_reqs:
            self._admit(new.req_id, self.requests[new.req_id])
        for name in scheduler_output.scheduled_cached_reqs.resumed_req_ids:
            self._admit(name, self.requests[name])
        self._step, self._unplanned = scheduler_output, scheduler_output.total_num_scheduled_tokens > 0
        return found

    def _admit(self, name: str, state: Any) -> None:
        """Begin a request that is computed from the start of its prompt, or from the end of its cached blocks."""
        assert self.buffers is not None
        outcome, settings = decide(self.settings, state.sampling_params.extra_args, state.mm_features)
        if outcome == "no_image":
            logger.warning_once(
                "RUDDER leaves requests without an image unsteered: there is no visual evidence to anchor to. "
                "Send rudder_force to steer them all the same, or rudder=false."
            )
        first_token = settings is not None and settings.steer_first_token
        planned = Planned(state.num_prompt_tokens, settings is not None, first_token, self._counted(state))
        slot = self.planner.admit(name, planned, self._cached_blocks(state) if planned.steered else ())
        if settings is not None:
            self.buffers.open_slot(slot, settings.push_rows()[0])

    def _counted(self, state: Any) -> NDArray[np.bool_] | None:
        """Return which positions are in the pooled span; None if all are."""
        span = self.settings.config.span
        if span == "prompt":
            return None
        described: Any = SimpleNamespace(config=self.model_config.hf_config)
        ids = np.zeros(self.model_config.max_model_len, dtype=np.int64)
        ids[: state.num_prompt_tokens] = state.prompt_token_ids if state.prompt_token_ids is not None else 0
        image = np.isin(ids, image_token_ids(described))
        image[state.num_prompt_tokens :] = False
        return image if span == "image" else ~image

    def _cached_blocks(self, state: Any) -> list[int]:
        """Return the blocks of the prefix cache that the request begins with."""
        start, size = state.num_computed_tokens, self.planner.block_size
        if not start:
            return []
        if size is None or start % size:
            raise RuntimeError(f"vLLM begins a request at token {start}, and RUDDER has no sums of those before.")
        return list(state.block_ids[0][: start // size])

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Plan, then run the model."""
        if self.buffers is not None:
            self._plan(self.buffers, kwargs.get("positions"))
        return super()._model_forward(*args, **kwargs)

    def _plan(self, buffers: Buffers, position_ids: Any) -> None:
        """Bring the buffers to the state that the coming forward starts from."""
        self._unplanned = False
        batch, counts, total = self.input_batch, self._step.num_scheduled_tokens, self._step.total_num_scheduled_tokens
        padded = total if position_ids is None else max(total, position_ids.shape[-1])
        computed, blocks_of = batch.num_computed_tokens_cpu, lambda name: self.requests[name].block_ids[0]
        changes = self.planner.plan(batch.req_ids, computed, counts, total, padded, blocks_of)
        if changes is not None:
            buffers.apply(self.planner, changes, padded)

    def _dummy_run(self, *args: Any, **kwargs: Any) -> Any:
        """Read and steer nothing in a forward that belongs to no request."""
        if self.buffers is not None:
            self.buffers.neutral(self.planner)
        return super()._dummy_run(*args, **kwargs)


class RudderWorker(Worker):  # type: ignore[misc]
    """vLLM's worker with a runner that plans."""

    def init_device(self) -> None:
        """Build vLLM's runner and put RUDDER's plan in front of it."""
        super().init_device()
        stock = type(self.model_runner)
        require(stock, "load_model", "get_model", "initialize_kv_cache", "get_kv_cache_spec")
        require(stock, "_update_states", "_model_forward", "_dummy_run")
        self.model_runner.__class__ = type(f"Steered{stock.__name__}", (SteeredRunner, stock), {})

    def determine_available_memory(self) -> int:
        """Leave room for the sums of the prefix cache's blocks."""
        available, runner = int(super().determine_available_memory()), self.model_runner
        if runner.buffers is None or not self.vllm_config.cache_config.enable_prefix_caching:
            return available
        block = sum(int(spec.page_size_bytes) for spec in runner.get_kv_cache_spec().values())
        return int(available * block // (block + runner.buffers.sums[0].nbytes))
