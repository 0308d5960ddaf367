"""Bad settings of a request are refused before it reaches the engine: over HTTP with status 400 and the reason.

vLLM asks the logits processors of an engine whether they accept a request's parameters; this one does only that. It
is named by the engine's settings (`requests:Settings_7b22...`), because the check is a class method and vLLM passes
the name alone to its processes.
"""

from __future__ import annotations

import json
from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor

from .metrics import count
from .settings import EngineSettings, engine_settings, request_settings

_NAME = "Settings_"


class RequestCheck(LogitsProcessor):  # type: ignore[misc]
    """A logits processor that checks parameters and leaves logits alone."""

    engine: EngineSettings

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        pass

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse what the engine cannot do, and count it.

        Raises:
            ValueError: A setting is unknown or out of range, or the request is a step of vLLM's beam search.
        """
        try:
            if request_settings(cls.engine, sampling_params.extra_args) is not None:
                _refuse_beams(sampling_params)
        except ValueError:
            count("refused")
            raise

    def is_argmax_invariant(self) -> bool:
        """Return that the likeliest token stays the same."""
        return True

    def update_state(self, batch_update: Any) -> None:
        """Do nothing: no request has a state here."""

    def apply(self, logits: Any) -> Any:
        """Return the logits as they are."""
        return logits


def _refuse_beams(params: Any) -> None:
    """Refuse a step of vLLM's beam search, which is known by its parameters alone."""
    if params.max_tokens == 1 and params.logprobs and not params.detokenize:
        raise ValueError(
            "RUDDER does not steer vLLM's beam search, which sends the answer so far as a prompt. Use sampling, or "
            'start the engine with "steer_by_default": false: vLLM drops what a beam search says of it. If you asked '
            "for one token, which RUDDER would not change, send rudder=false."
        )


def check_name(engine: EngineSettings) -> str:
    """Return the name under which vLLM finds the check of an engine."""
    return f"{__name__}:{_NAME}{json.dumps(engine.to_dict(), sort_keys=True).encode().hex()}"


def __getattr__(name: str) -> Any:
    if not name.startswith(_NAME):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    given = json.loads(bytes.fromhex(name.removeprefix(_NAME)))
    return type("RudderRequestCheck", (RequestCheck,), {"engine": engine_settings(given)})
