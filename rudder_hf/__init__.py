"""RUDDER for Hugging Face transformers: steer vision-language models towards what is in the picture."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version_rudder import __version__

if TYPE_CHECKING:
    from .attach_rudder import SteeringHandle, attach, detach
    from .backbones_rudder import UnsupportedModelError
    from .configuration_rudder import RudderConfig
    from .modeling_rudder import RudderForConditionalGeneration
    from .presets_rudder import get_preset, list_presets
    from .trace_rudder import RudderTrace
    from .warnings_rudder import RudderWarning

__all__ = [
    "RudderConfig",
    "RudderForConditionalGeneration",
    "RudderTrace",
    "RudderWarning",
    "SteeringHandle",
    "UnsupportedModelError",
    "__version__",
    "attach",
    "detach",
    "get_preset",
    "list_presets",
]

# Imported when first used: torch and transformers take seconds, which `rudder --help` does not need.
_HOMES = {
    "RudderConfig": "configuration_rudder",
    "RudderForConditionalGeneration": "modeling_rudder",
    "RudderTrace": "trace_rudder",
    "RudderWarning": "warnings_rudder",
    "SteeringHandle": "attach_rudder",
    "UnsupportedModelError": "backbones_rudder",
    "attach": "attach_rudder",
    "detach": "attach_rudder",
    "get_preset": "presets_rudder",
    "list_presets": "presets_rudder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
