"""What an engine's config has to be for RUDDER, checked and set when vLLM makes it; the rest is refused by name.

vLLM has a table of checks, one for each architecture, that it runs on every config. `register_checks` adds RUDDER's to
each entry, also of architectures that other plugins add later. It does something only for an engine that was given
RUDDER settings, and then runs for every architecture, so that one which RUDDER cannot steer stops the start instead of
answering unsteered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import reduce
from types import SimpleNamespace
from typing import Any

from packaging.version import Version
from vllm import __version__, envs
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.models import ModelRegistry, config
from vllm.model_executor.models.config import VerifyAndUpdateConfig

from ...core.families import REFUSED
from . import TESTED, misfit
from .layers import NATIVE, is_back_end
from .settings import KEY, check_base, check_keys, engine_settings, other_files

# Below vLLM's own logger: others are not shown.
logger = init_logger("vllm.plugins.rudder_hf")

_HERE = __name__.rpartition(".")[0]
WORKER = f"{_HERE}.worker.RudderWorker"
SCHEDULER = f"{_HERE}.scheduler.RudderScheduler"
UNTESTED = "RUDDER_UNTESTED_VLLM"
# Where a config says that something is in use, and the option that does.
_NOT_HANDLED = (
    ("speculative_config", "Speculative decoding", "--speculative-config"),
    ("kv_transfer_config", "A KV connector", "--kv-transfer-config"),
    ("ec_transfer_config", "An encoder connector", "--ec-transfer-config"),
    ("cache_config.kv_offloading_size", "KV offloading", "--kv-offloading-size"),
    ("cache_config.kv_sharing_fast_prefill", "A prefill that skips layers", "--kv-sharing-fast-prefill"),
    ("parallel_config.use_ubatching", "Micro-batching", "--enable-dbo and --ubatch-size"),
    ("compilation_config.pass_config.enable_sp", "Sequence parallelism", "enable_sp in the compilation config"),
    ("model_config.enable_sleep_mode", "Sleep mode", "--enable-sleep-mode"),
)


def register_checks() -> None:
    """Put RUDDER's check into vLLM's table; a second call changes nothing.

    Raises:
        RuntimeError: vLLM does not run it: settings would be ignored in silence.
    """
    if not isinstance(config.MODELS_CONFIG_MAP, _Checks):
        config.MODELS_CONFIG_MAP = _Checks(config.MODELS_CONFIG_MAP)
    # A misspelled key, which the check refuses.
    probe = SimpleNamespace(architecture=next(iter(NATIVE)), is_hybrid=False, convert_type="none")
    try:
        VllmConfig.try_verify_and_update_config(SimpleNamespace(model_config=probe, additional_config={"ruder": 1}))
    except ValueError:
        return
    raise RuntimeError(misfit("it does not run the checks in MODELS_CONFIG_MAP"))


class _Checks(dict[str, Any]):
    """vLLM's table, in which every architecture of its registry has an entry with RUDDER's check."""

    def get(self, architecture: str, default: Any = None) -> Any:
        """Return the entry of an architecture, or the default if vLLM does not know it."""
        stock = super().get(architecture, VerifyAndUpdateConfig)
        if issubclass(stock, _Check):
            return stock
        if architecture not in self and architecture not in ModelRegistry.get_supported_archs():
            return default
        self[architecture] = type(f"Rudder{stock.__name__}", (_Check, stock), {})
        return self[architecture]


class _Check(VerifyAndUpdateConfig):  # type: ignore[misc]
    """Runs before the architecture's own check, which it calls."""

    @classmethod
    def verify_and_update_config(cls, vllm_config: Any) -> None:
        """Check and set the config of an engine with RUDDER settings."""
        # The stock checks are static methods.
        super().verify_and_update_config(vllm_config)
        given = vllm_config.additional_config
        if isinstance(given, dict):
            check_keys(given, of_engine=True)
            if KEY in given:
                prepare(vllm_config)


def prepare(vllm_config: Any) -> None:
    """Make an engine's config one that steers.

    Raises:
        ValueError: The settings are bad, or RUDDER cannot run beside another setting, which is named.
    """
    from .metrics import show_metrics
    from .requests import check_name

    settings = engine_settings(vllm_config.additional_config[KEY])
    check_version()
    refuse(vllm_config)
    model, parallel, scheduler = vllm_config.model_config, vllm_config.parallel_config, vllm_config.scheduler_config
    check_base(settings, model.model)
    if warning := other_files(settings.config, model.model, getattr(model.hf_config, "_commit_hash", None)):
        logger.warning(warning)
    layer, count = settings.config.layer, model.hf_text_config.num_hidden_layers
    if not -count <= layer < count:
        raise ValueError(
            f"RUDDER setting `layer` is {layer}, but the model has {count} decoder layers: choose from {-count} to "
            f"{count - 1}."
        )
    # Resolved once: workers need no network, and compiled graphs are kept apart by what the settings are.
    vllm_config.additional_config[KEY] = settings.to_dict()
    parallel.worker_cls = WORKER if parallel.worker_cls == "auto" else parallel.worker_cls
    scheduler.scheduler_cls = scheduler.scheduler_cls or SCHEDULER
    model.logits_processors = [*(model.logits_processors or []), check_name(settings)]
    show_metrics(
        {
            "layer": str(layer),
            "alpha_max": f"{settings.config.alpha_max:g}",
            "settings": settings.repository,
            "revision": settings.revision,
        }
    )


def check_version() -> None:
    """Refuse a vLLM that RUDDER was not tested with, unless the environment allows it.

    Raises:
        ValueError: With how to allow it.
    """
    if Version(TESTED[0]).release <= Version(__version__).release[:2] <= Version(TESTED[1]).release:
        return
    tested = f"RUDDER is tested with vLLM {TESTED[0]} to {TESTED[1]}, and this is {__version__}."
    if os.environ.get(UNTESTED) != "1":
        raise ValueError(f"{tested} Install one of these, or set {UNTESTED}=1 to use it anyway.")
    logger.warning(f"{tested} Compare some answers with those of plain transformers before you trust it.")


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
        ValueError: One sentence for each thing in the way, with what to do.
    """
    if reasons := list(_reasons(vllm_config)):
        raise ValueError("RUDDER cannot steer this engine: " + " ".join(reasons))


def _reasons(vllm_config: Any) -> Iterator[str]:
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
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
    for place, what, option in _NOT_HANDLED:
        # Some are only there once vLLM has made its config, when the worker asks again.
        if reduce(lambda at, name: getattr(at, name, None), place.split("."), vllm_config):
            yield f"{what} is not handled: leave out {option}."
    for name in ("prefill_context_parallel_size", "decode_context_parallel_size", "data_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            yield f"{name}={getattr(parallel, name)} is not handled: use tensor or pipeline parallel, or more engines."
    if envs.VLLM_BATCH_INVARIANT:
        yield (
            "VLLM_BATCH_INVARIANT is not handled, since sums over a prompt depend on the chunks that it is cut into: "
            "unset it."
        )
    if vllm_config.use_v2_model_runner:
        yield "vLLM's second model runner is not handled: set VLLM_USE_V2_MODEL_RUNNER=0."
    scheduler_cls = vllm_config.scheduler_config.scheduler_cls
    for option, given in (("worker", parallel.worker_cls), ("scheduler", scheduler_cls)):
        if given not in ("auto", None) and not _is_ours(given):
            yield f"It needs a {option} of its own: leave out --{option}-cls {given}."


def _is_ours(name: Any) -> bool:
    """Return whether a class, given itself or by its name, descends from one of this package."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    found = resolve_obj_by_qualname(name) if isinstance(name, str) else name
    return any(base.__module__.startswith(_HERE) for base in found.__mro__)
