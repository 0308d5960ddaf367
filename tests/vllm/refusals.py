"""Engines that RUDDER refuses: the config is not made, and the message names what is in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rudder_hf import RudderConfig, write_repo
from tests.vllm.engines import SETTINGS

# An architecture that is registered after RUDDER.
_LATER = "LaterForConditionalGeneration"
# Stands for the folder with settings that name another model.
_OF_ANOTHER = "settings of another"
# Options and RUDDER settings of an engine, and what the refusal has to say. Other bad settings and keys are in
# tests/integrations/test_vllm_settings.py: here it is enough that vLLM asks.
REFUSED: tuple[tuple[str, dict[str, Any], Any, str], ...] = (
    ("no such layer", {}, {"layer": 99}, "`layer` is 99"),
    ("unknown setting", {}, {**SETTINGS, "alpha": 1.0}, "'alpha' is not a RUDDER setting"),
    ("typo in the key", {"additional_config": {"ruder": SETTINGS}}, None, "'ruder' in additional_config"),
    ("settings of another model", {}, _OF_ANOTHER, "The RUDDER settings are for 'someone/another'"),
    (
        "speculative decoding",
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
        SETTINGS,
        "Speculative decoding",
    ),
    (
        "KV connector",
        {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
        SETTINGS,
        "A KV connector",
    ),
    ("data parallel", {"data_parallel_size": 2}, SETTINGS, "data_parallel_size=2"),
    ("another worker", {"worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker"}, SETTINGS, "--worker-cls"),
    (
        "another scheduler",
        {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler", "enable_prefix_caching": True},
        SETTINGS,
        "--scheduler-cls",
    ),
    ("KV offloading", {"kv_offloading_size": 1.0}, SETTINGS, "--kv-offloading-size"),
    (
        "architecture of another plugin",
        {"hf_overrides": {"architectures": [_LATER]}},
        SETTINGS,
        f"no way into vLLM's own {_LATER}",
    ),
    (
        "another architecture",
        {"hf_overrides": {"architectures": ["Idefics3ForConditionalGeneration"]}},
        SETTINGS,
        "no way into",
    ),
)


def check_refusals(folder: Path) -> dict[str, Any]:
    """Try each engine and collect what was said."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.plugins import load_general_plugins

    load_general_plugins()

    ModelRegistry.register_model(_LATER, "vllm.model_executor.models.llava:LlavaForConditionalGeneration")
    another = folder.with_name("settings-of-another")
    write_repo(RudderConfig(**SETTINGS, base_model_name_or_path="someone/another"), another)
    said: dict[str, str] = {}
    failed = []
    for name, options, rudder, reason in REFUSED:
        rudder = str(another) if rudder == _OF_ANOTHER else rudder
        said[name] = _of_config(folder, rudder, **options)
        if reason not in said[name]:
            failed.append(name)
    for name, (told, reason) in {
        "changed internals": (_of_changed_internals(), "has no _model_forward. It is tested with vLLM"),
        "checks that are not run": (_of_checks_not_run(), "it does not run the checks in MODELS_CONFIG_MAP"),
        "untested release": (_of_untested_release(), "is 0.99.0. Install one of these, or set RUDDER_UNTESTED_VLLM=1"),
        "untested release, allowed": (_of_untested_release("1"), "Compare some answers"),
        "batch invariance": (_of_batch_invariance(folder), "VLLM_BATCH_INVARIANT is not handled"),
        "plugin that cannot be imported": (_of_broken_plugin(), "RUDDER cannot be imported beside this vLLM"),
        "plugin switched off": (_of_plugin_off(folder, {"rudder": SETTINGS}), "RUDDER's plugin is switched off"),
        "plugin switched off, misspelled key": (_of_plugin_off(folder, {"ruder": SETTINGS}), "Leave it out"),
    }.items():
        said[name] = told
        if reason not in told:
            failed.append(name)
    # Where the checkpoints lie on this machine is nobody's business.
    said = {name: told.replace(f"{folder.parent}/", "") for name, told in said.items()}
    return {"name": "refusals", "tried": len(said), "failed": failed, "said": said, "passed": not failed}


def _refusal(action: Callable[..., object], *given: Any) -> str:
    """What an action says that fails as it should."""
    try:
        action(*given)
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "not refused"


def _of_config(folder: Path, rudder: Any, **options: Any) -> str:
    """What is said when vLLM makes the config of an engine."""
    from vllm.engine.arg_utils import EngineArgs

    common = {"model": str(folder), "dtype": "float32", "max_model_len": 256}
    given = {**common, "additional_config": {"rudder": rudder}, **options}
    return _refusal(lambda: EngineArgs(**given).create_engine_config())


def _of_changed_internals() -> str:
    """What a class of vLLM's without a method that RUDDER overrides is told."""
    from rudder_hf.integrations.vllm.engine import require

    return _refusal(require, type("GPUModelRunner", (), {"load_model": print}), "load_model", "_model_forward")


def _of_untested_release(allowed: str = "0") -> str:
    """What is said of the tested releases (nothing) and of the next one."""
    from rudder_hf.integrations.vllm import engine

    told: list[str] = []
    environment = patch.dict(os.environ, {engine.UNTESTED: allowed})
    with environment, patch.object(engine.logger, "warning", told.append):
        engine.check_version()
        if told:
            return "a tested release is warned of"
        with patch.object(engine, "__version__", "0.99.0"):
            refusal = _refusal(engine.check_version)
    return " ".join(told) or refusal


def _of_checks_not_run() -> str:
    """What is said where vLLM reads its table of checks in another way than RUDDER knows."""
    from vllm.config import VllmConfig

    from rudder_hf.integrations.vllm.engine import register_checks

    register_checks()
    with patch.object(VllmConfig, "try_verify_and_update_config", lambda config: None):
        return _refusal(register_checks)


def _of_batch_invariance(folder: Path) -> str:
    """What an engine says that promises answers that do not depend on their batch."""
    with patch.dict(os.environ, {"VLLM_BATCH_INVARIANT": "1"}):
        return _of_config(folder, SETTINGS)


def _of_broken_plugin() -> str:
    """What vLLM says when it loads its plugins and a module that RUDDER imports is not as it was."""
    script = """
import sys
sys.modules["rudder_hf.hub.modeling"] = None
from vllm.plugins import load_general_plugins
load_general_plugins()
"""
    return _last_words(script, {})


def _of_plugin_off(folder: Path, additional: dict[str, Any]) -> str:
    """What an engine says that was given RUDDER's worker and settings, but no plugin."""
    script = f"""
from vllm import LLM
LLM({str(folder)!r}, dtype="float32", max_model_len=256, max_num_seqs=8, enforce_eager=True, model_impl="transformers",
    distributed_executor_backend="uni", worker_cls="rudder_hf.integrations.vllm.worker.RudderWorker",
    scheduler_cls="rudder_hf.integrations.vllm.scheduler.RudderScheduler", additional_config={additional!r})
"""
    return _last_words(script, {"VLLM_PLUGINS": "none"})


def _last_words(script: str, environment: dict[str, str]) -> str:
    """The last line that a program which fails writes."""
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | environment, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1:]
    return last[0] if done.returncode and last else "not refused"
