"""Engines that RUDDER refuses: the config is not made, and the message names what is in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rudder_hf import RudderConfig, write_repo
from tests.vllm.engines import SETTINGS

# An architecture that is registered after RUDDER.
_LATER = "LaterForConditionalGeneration"
# Stands for the folder with settings that name another model.
_OF_ANOTHER = "settings of another"
# Options and RUDDER settings of an engine, and what the refusal has to say.
REFUSED: tuple[tuple[str, dict[str, Any], Any, str], ...] = (
    ("no such layer", {}, {"layer": 99}, "`layer` is 99"),
    ("unknown setting", {}, {**SETTINGS, "alpha": 1.0}, "'alpha' is not a RUDDER setting"),
    ("bad setting", {}, {**SETTINGS, "alpha_max": -1.0}, "`alpha_max` is -1.0"),
    ("too strong for the dtype", {"dtype": "float16"}, {**SETTINGS, "alpha_max": 65505.0}, "a push up to 65504"),
    ("no layer", {}, {"alpha_max": 4.0}, "needs the layer"),
    ("no such settings", {}, "no/such-folder", "no/such-folder"),
    ("not settings", {}, 7, "has to be the id or folder"),
    ("null", {}, None, "Leave it out"),
    ("typo in the key", {"additional_config": {"ruder": SETTINGS}}, None, "'ruder' in additional_config"),
    ("key in capitals", {"additional_config": {"RUDDER": SETTINGS}}, None, "'RUDDER' in additional_config"),
    ("settings of another model", {}, _OF_ANOTHER, "The RUDDER settings are for 'someone/another'"),
    ("settings as a model", {"model": _OF_ANOTHER}, SETTINGS, "holds RUDDER settings, not a model"),
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
        "KV connectors",
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
    from vllm.engine.arg_utils import EngineArgs
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
        options = {key: str(another) if value == _OF_ANOTHER else value for key, value in options.items()}
        common = {"model": str(folder), "dtype": "float32", "max_model_len": 256}
        try:
            EngineArgs(**{**common, "additional_config": {"rudder": rudder}, **options}).create_engine_config()
            said[name] = "not refused"
        except ValueError as error:
            said[name] = str(error)
        if reason not in said[name]:
            failed.append(name)
    for name, (told, reason) in {
        "changed internals": (_of_changed_internals(), "has no _model_forward. It is tested with vLLM"),
        "untested release": (_of_untested_release(), "RUDDER is tested with vLLM"),
        "plugin switched off": (_of_plugin_off(folder), "RUDDER's plugin is switched off"),
        "request too strong for the dtype": (_of_strong_request(folder), "a push up to 65504"),
    }.items():
        said[name] = told
        if reason not in told:
            failed.append(name)
    # Where the checkpoints lie on this machine is nobody's business.
    said = {name: told.replace(f"{folder.parent}/", "") for name, told in said.items()}
    return {"name": "refusals", "tried": len(said), "failed": failed, "said": said, "passed": not failed}


def _of_changed_internals() -> str:
    """What a class of vLLM's without a method that RUDDER overrides is told."""
    from rudder_hf.integrations.vllm.engine import require

    try:
        require(type("GPUModelRunner", (), {"load_model": print}), "load_model", "_model_forward")
    except RuntimeError as error:
        return str(error)
    return "not refused"


def _of_strong_request(folder: Path) -> str:
    """What a request is told whose push the model's float16 has no room for, and whether the strongest passes."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.import_utils import resolve_obj_by_qualname

    arguments = EngineArgs(str(folder), dtype="float16", max_model_len=256, additional_config={"rudder": SETTINGS})
    (name,) = arguments.create_engine_config().model_config.logits_processors
    check = resolve_obj_by_qualname(name.replace(":", "."))
    try:
        for strength in (65504.0, 65505.0):
            check.validate_params(SamplingParams(extra_args={"rudder_alpha_max": strength}))
    except ValueError as error:
        return str(error) if strength > 65504.0 else f"{strength} is refused"
    return "not refused"


def _of_untested_release() -> str:
    """What the log says of the tested releases (nothing) and of the next one."""
    from rudder_hf.integrations.vllm import engine

    told = []
    with patch.object(engine.logger, "warning", lambda text, *values: told.append(text % values)):
        engine.check_version()
        if told:
            return "a tested release is warned of"
        with patch.object(engine, "__version__", "0.99.0"):
            engine.check_version()
    return " ".join(told)


def _of_plugin_off(folder: Path) -> str:
    """What an engine says that was given RUDDER's worker and settings, but no plugin."""
    script = f"""
from vllm import LLM
LLM({str(folder)!r}, dtype="float32", max_model_len=256, max_num_seqs=8, enforce_eager=True, model_impl="transformers",
    distributed_executor_backend="uni", worker_cls="rudder_hf.integrations.vllm.worker.RudderWorker",
    additional_config={{"rudder": {SETTINGS!r}}})
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "VLLM_PLUGINS": "none"}, capture_output=True, text=True
    )
    last = done.stderr.strip().splitlines()[-1:]
    return last[0] if done.returncode and last else "not refused"
