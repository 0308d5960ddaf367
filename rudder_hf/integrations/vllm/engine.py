"""What an engine's config has to be for RUDDER, checked and set when vLLM makes it; the rest is refused by name.

vLLM has a table of checks, one for each architecture, that it runs on every config. `register_checks` adds RUDDER's to
each entry, also of architectures that other plugins add later. It does something only for an engine that was given
RUDDER settings, and then runs for every architecture, so that one which RUDDER cannot steer stops the start instead of
answering unsteered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import AutoConfig
from vllm import __version__
from vllm.logger import init_logger
from vllm.model_executor.models import ModelRegistry, config
from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.transformers_utils.config import _CONFIG_REGISTRY

from ...core.configuration import RudderConfig
from ...core.families import REFUSED
from . import TESTED, misfit
from .layers import NATIVE, is_back_end
from .settings import KEY, EngineSettings, check_base, check_keys, check_strength, engine_settings, longest_push

# Below vLLM's own logger: others are not shown.
logger = init_logger("vllm.plugins.rudder_hf")

_HERE = __name__.rpartition(".")[0]
WORKER = f"{_HERE}.worker.RudderWorker"
SCHEDULER = f"{_HERE}.scheduler.RudderScheduler"


def register_checks() -> None:
    """Put RUDDER's check into vLLM's table; a second call changes nothing."""
    if not isinstance(config.MODELS_CONFIG_MAP, _Checks):
        config.MODELS_CONFIG_MAP = _Checks(config.MODELS_CONFIG_MAP)
        _CONFIG_REGISTRY[RudderConfig.model_type] = _NoModel


class _NoModel(RudderConfig):
    """What vLLM finds where it is given settings as a model."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Refuse, with what to do."""
        # vLLM has just put this class in the place of the real one.
        AutoConfig.register(RudderConfig.model_type, RudderConfig, exist_ok=True)
        name, base = kwargs.get("name_or_path", "SETTINGS"), config_dict.get("base_model_name_or_path", "BASE")
        raise ValueError(
            f"{name!r} holds RUDDER settings, not a model. Serve the model and name the settings beside it: "
            f'--model {base} --additional-config \'{{"{KEY}": "{name}"}}\''
        )


class _Checks(dict[str, Any]):
    """vLLM's table, in which every architecture of its registry has an entry with RUDDER's check."""

    def get(self, architecture: str, default: Any = None) -> Any:
        """The entry of an architecture; the default if vLLM does not know it by this name."""
        stock = super().get(architecture, VerifyAndUpdateConfig)
        if issubclass(stock, _Check):
            return stock
        if architecture not in self and architecture not in ModelRegistry.get_supported_archs():
            return default
        self[architecture] = type(f"Rudder{stock.__name__}", (_Check, stock), {})
        return self[architecture]


class _Check(VerifyAndUpdateConfig):  # type: ignore[misc]
    """Goes before the architecture's own check, which it calls."""

    @classmethod
    def verify_and_update_config(cls, vllm_config: Any) -> None:
        """Check and set the config of an engine with RUDDER settings."""
        # The stock checks are static methods.
        super().verify_and_update_config(vllm_config)
        given = vllm_config.additional_config
        if isinstance(given, dict):
            check_keys(given, "additional_config")
            if KEY in given:
                prepare(vllm_config)


def prepare(vllm_config: Any) -> EngineSettings:
    """Make an engine's config one that steers.

    Raises:
        ValueError: The settings are bad, or RUDDER cannot run beside another setting, which is named.
    """
    from .metrics import show_counters
    from .requests import check_name

    settings = engine_settings(vllm_config.additional_config[KEY])
    refuse(vllm_config)
    check_base(settings, vllm_config.model_config.model)
    check_version()
    model, parallel, scheduler = vllm_config.model_config, vllm_config.parallel_config, vllm_config.scheduler_config
    layer, count = settings.config.layer, model.hf_text_config.num_hidden_layers
    if not -count <= layer < count:
        raise ValueError(
            f"RUDDER setting `layer` is {layer}, but the model has {count} decoder layers: choose from {-count} to "
            f"{count - 1}."
        )
    check_strength(settings.own, longest := longest_push(model))
    # Resolved once: workers need no network, and compiled graphs are kept apart by what the settings are.
    vllm_config.additional_config[KEY] = settings.to_dict()
    parallel.worker_cls = WORKER if parallel.worker_cls == "auto" else parallel.worker_cls
    scheduler.scheduler_cls = scheduler.scheduler_cls or SCHEDULER
    model.logits_processors = [*(model.logits_processors or []), check_name(settings, longest)]
    show_counters()
    return settings


def check_version() -> None:
    """Warn of a vLLM that RUDDER was not tested with."""
    oldest, newest = (tuple(map(int, release.split("."))) for release in TESTED)
    numbers = [int(part) for part in __version__.split(".")[:2] if part.isdecimal()]
    if not oldest <= tuple(numbers) <= newest:
        logger.warning(
            "RUDDER is tested with vLLM %s to %s, and this is %s: compare some answers with those of plain "
            "transformers before you trust it.", *TESTED, __version__,
        )  # fmt: skip


def require(stock: type, *names: str) -> None:
    """Refuse a class of vLLM that lacks what RUDDER puts itself in front of.

    Raises:
        RuntimeError: With what is missing.
    """
    if missing := [name for name in names if not callable(getattr(stock, name, None))]:
        raise RuntimeError(misfit(f"{stock.__name__} has no {', '.join(missing)}"))


def refuse(vllm_config: Any) -> None:
    """Refuse a config that RUDDER does not handle.

    Raises:
        ValueError: With what is in the way.
    """
    if reasons := list(refusals(vllm_config)):
        raise ValueError("RUDDER cannot steer this engine: " + " ".join(reasons))


def refusals(vllm_config: Any) -> Iterator[str]:
    """What RUDDER does not handle in a config: one sentence for each, with what to do."""
    model, parallel, cache = vllm_config.model_config, vllm_config.parallel_config, vllm_config.cache_config
    reason = REFUSED.get(str(getattr(model.hf_config, "model_type", "")))
    if reason is not None:
        yield f"It cannot work with {model.hf_config.model_type!r}: {reason}."
    elif model.architecture not in NATIVE and not is_back_end(model.architecture):
        yield (
            f"It has no way into vLLM's own {model.architecture}. Use vLLM's transformers back end: "
            "--model-impl transformers."
        )
    if model.runner_type != "generate" or not model.is_multimodal_model:
        yield "It steers generation from images, which this model is not for."
    if vllm_config.speculative_config is not None:
        yield "Speculative decoding is not handled: leave out --speculative-config."
    if vllm_config.kv_transfer_config is not None:
        yield "KV connectors are not handled: leave out --kv-transfer-config."
    if getattr(cache, "kv_offloading_size", None) is not None:
        yield "KV offloading is not handled: leave out --kv-offloading-size."
    if getattr(vllm_config, "ec_transfer_config", None) is not None:
        yield "Encoder connectors are not handled: leave out --ec-transfer-config."
    for name in ("prefill_context_parallel_size", "decode_context_parallel_size", "data_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            yield f"{name}={getattr(parallel, name)} is not handled: use tensor or pipeline parallel, or more engines."
    if parallel.enable_dbo or parallel.use_ubatching:
        yield "Micro-batches are not handled: leave out --enable-dbo and --ubatch-size."
    if getattr(vllm_config.compilation_config.pass_config, "enable_sp", False):
        yield "Sequence parallelism is not handled: leave out enable_sp in the compilation config."
    if cache.kv_sharing_fast_prefill:
        yield "--kv-sharing-fast-prefill leaves prompt tokens out of layers that RUDDER reads: leave it out."
    if model.enable_sleep_mode:
        yield "Sleep mode drops the sums of running requests: leave out --enable-sleep-mode."
    if vllm_config.use_v2_model_runner:
        yield "vLLM's second model runner is not handled: set VLLM_USE_V2_MODEL_RUNNER=0."
    if parallel.worker_cls != "auto" and not _is_ours(parallel.worker_cls):
        yield f"It needs a worker of its own: leave out --worker-cls {parallel.worker_cls}."
    scheduler = vllm_config.scheduler_config.scheduler_cls
    if scheduler is not None and not _is_ours(scheduler):
        yield f"It needs a scheduler of its own: leave out --scheduler-cls {scheduler}."


def _is_ours(name: Any) -> bool:
    """Whether a class, or what a name stands for, descends from one of this package."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    found = resolve_obj_by_qualname(name) if isinstance(name, str) else name
    return any(base.__module__.startswith(_HERE) for base in found.__mro__)
