"""Bad settings of a request are refused before it reaches the engine: over HTTP with status 400 and the reason.

vLLM asks the logits processors of an engine whether they accept a request's parameters; this one does only that. It
is named by the engine's settings (`requests:Settings_7b22...`), because the check is a class method and vLLM passes
the name alone to its processes.
"""

from __future__ import annotations

import json
from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor

from .metrics import REQUESTS, count
from .settings import EngineSettings, check_strength, engine_settings, request_settings

_NAME = "Settings_"


class RequestCheck(LogitsProcessor):  # type: ignore[misc]
    """Checks parameters and leaves logits alone."""

    engine: EngineSettings
    longest: float

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        pass

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse what the engine cannot do.

        Raises:
            ValueError: A setting is unknown or out of range, or the request is a step of vLLM's beam search.
        """
        try:
            settings = request_settings(cls.engine, sampling_params.extra_args)
            if settings is not None:
                check_strength(settings.rows["alpha_max"][0], cls.longest)
                _refuse_beams(sampling_params)
        except ValueError:
            count(REQUESTS, "refused")
            raise

    def is_argmax_invariant(self) -> bool:
        """Logits stay as they are."""
        return True

    def update_state(self, batch_update: Any) -> None:
        """Nothing to follow."""

    def apply(self, logits: Any) -> Any:
        """Logits stay as they are."""
        return logits


def _refuse_beams(params: Any) -> None:
    """Refuse a step of vLLM's beam search, which is known by its parameters alone."""
    if params.max_tokens == 1 and params.logprobs and not params.detokenize:
        raise ValueError(
            "RUDDER does not steer vLLM's beam search, which sends the answer so far as a prompt. Use sampling, or "
            'start the engine with "steer_by_default": false: vLLM drops what a beam search says of it. If you asked '
            "for one token, which RUDDER would not change, send rudder=false."
        )


def check_name(engine: EngineSettings, longest: float) -> str:
    """The name under which vLLM finds the check of an engine whose model has room for pushes up to `longest`."""
    return f"{__name__}:{_NAME}{json.dumps([engine.to_dict(), longest], sort_keys=True).encode().hex()}"


def __getattr__(name: str) -> Any:
    if not name.startswith(_NAME):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    given, longest = json.loads(bytes.fromhex(name.removeprefix(_NAME)))
    return type("RudderRequestCheck", (RequestCheck,), {"engine": engine_settings(given), "longest": longest})
