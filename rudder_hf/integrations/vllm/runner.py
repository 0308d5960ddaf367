"""The plan of each step, made where vLLM knows which request is in which row of the batch: in its model runner.

The layer's own context knows neither the request nor the length of its prompt.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.kv_cache_interface import FullAttentionSpec

from ...core.backbones import image_token_ids
from ...core.call import CallSettings
from . import misfit
from .buffers import Buffers
from .engine import logger, refuse
from .layers import install
from .operator import CONTEXT_NAME, define_operator
from .planning import Planned, Planner
from .requests import check_name
from .settings import KEY, EngineSettings, decide, engine_settings, longest_push, operator_row


class SteeredRunner:
    """What is put in front of vLLM's model runner of the first generation (`vllm.v1.worker.gpu_model_runner`)."""

    planner_class: type[Planner] = Planner
    planner: Planner
    buffers: Buffers | None = None
    settings: EngineSettings
    _step: Any = None
    _unplanned: bool = False

    # Of vLLM's runner.
    vllm_config: Any
    model_config: Any
    input_batch: Any
    requests: dict[str, Any]
    device: Any
    kv_cache_config: Any

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model and hook its target layer."""
        super().load_model(*args, **kwargs)  # type: ignore[misc]
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
        self.planner.answers_count = rudder.span != "image"
        model = self.get_model()  # type: ignore[attr-defined]
        target = install(model, self.model_config.architecture, rudder.layer)
        if target is None:
            logger.info("RUDDER: layer %d is in another stage of the pipeline.", rudder.layer)
            return
        hidden_size = self.model_config.hf_text_config.hidden_size
        self.buffers = Buffers(slots, hidden_size, tokens, self.device, rudder.pool == "norm", target.multiplier)
        self.buffers.neutral(self.planner)
        target.buffers = self.buffers
        config.compilation_config.static_forward_context[CONTEXT_NAME] = self.buffers
        logger.info("RUDDER steers layer %d (%s).", rudder.layer, self.settings.to_dict())

    def _prepared(self) -> EngineSettings:
        """The engine's settings; refused where the worker was named to vLLM and its config was not prepared."""
        given = self.vllm_config.additional_config
        settings = engine_settings(given.get(KEY) if isinstance(given, dict) else None)
        if check_name(settings, longest_push(self.model_config)) not in (self.model_config.logits_processors or ()):
            raise ValueError(
                "RUDDER's plugin is switched off: the environment variable VLLM_PLUGINS names other plugins. Add "
                "rudder_hf to it, separated by a comma, or unset it."
            )
        return settings

    def initialize_kv_cache(self, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        """Make room for the sums of the prefix cache's blocks."""
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)  # type: ignore[misc]
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

    def beside_sums(self, available: int) -> int:
        """What is left of the memory for the KV cache when each of its blocks has a sum."""
        if self.buffers is None or not self.vllm_config.cache_config.enable_prefix_caching:
            return available
        specs = self.get_kv_cache_spec().values()  # type: ignore[attr-defined]
        block: int = sum(spec.page_size_bytes for spec in specs)
        return available * block // (block + self.buffers.sums[0].nbytes)

    def _update_states(self, scheduler_output: Any) -> Any:
        """Follow requests as they come, go and come back."""
        found = super()._update_states(scheduler_output)  # type: ignore[misc]
        if self.buffers is None:
            return found
        if self._unplanned:
            raise RuntimeError(misfit("its model ran without GPUModelRunner._model_forward being called"))
        for name in (*scheduler_output.finished_req_ids, *(scheduler_output.preempted_req_ids or ())):
            self.planner.release(name)
        for new in scheduler_output.scheduled_new_reqs:
            state = self.requests[new.req_id]
            if new.req_id in self.planner.requests:
                self._extend(new.req_id, state)
            else:
                self._admit(new.req_id, state)
        for name in scheduler_output.scheduled_cached_reqs.resumed_req_ids:
            self._admit(name, self.requests[name])
        self._step, self._unplanned = scheduler_output, scheduler_output.total_num_scheduled_tokens > 0
        return found

    def _admit(self, name: str, state: Any) -> None:
        """Take up a request that is computed from the beginning, cached blocks aside."""
        assert self.buffers is not None
        settings = self._settings_of(state)
        slot = self.planner.admit(name, self._planned(state, settings), self._cached_blocks(state))
        if settings is not None:
            self.buffers.open_slot(slot, operator_row(settings))

    def _extend(self, name: str, state: Any) -> None:
        """Go on with a streamed prompt, whose next part may have other settings."""
        assert self.buffers is not None
        settings = self._settings_of(state)
        slot = self.planner.extend(name, self._planned(state, settings))
        if settings is None:
            return
        if slot == self.planner.spare_slot:
            logger.warning_once("RUDDER leaves streamed prompts unsteered that were not steered from their beginning.")
        else:
            self.buffers.set_row(slot, operator_row(settings))

    def _settings_of(self, state: Any) -> CallSettings | None:
        """The request's settings, None if it is not steered."""
        outcome, settings = decide(self.settings, state.sampling_params.extra_args, state.mm_features)
        if outcome == "no_image":
            logger.warning_once(
                "RUDDER leaves requests without an image unsteered: there is no visual evidence to anchor to. "
                "Send rudder_force to steer them all the same, or rudder=false."
            )
        return settings

    def _planned(self, state: Any, settings: CallSettings | None) -> Planned:
        first_token = settings is not None and settings.steer_first_token
        return Planned(state.num_prompt_tokens, settings is not None, first_token, self._counted(state))

    def _counted(self, state: Any) -> NDArray[np.bool_] | None:
        """Which prompt positions are pooled; None if all are."""
        span = self.settings.config.span
        if span == "prompt":
            return None
        ids = np.asarray(state.prompt_token_ids if state.prompt_token_ids is not None else [])
        described: Any = SimpleNamespace(config=self.model_config.hf_config)
        image = np.isin(ids, image_token_ids(described))
        return image if span == "image" else ~image

    def _cached_blocks(self, state: Any) -> list[int]:
        """Blocks of the prefix cache that the request begins with."""
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
        return super()._model_forward(*args, **kwargs)  # type: ignore[misc]

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
        """A forward of nobody reads and steers nothing."""
        if self.buffers is not None:
            self.buffers.neutral(self.planner)
        return super()._dummy_run(*args, **kwargs)  # type: ignore[misc]
