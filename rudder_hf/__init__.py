"""RUDDER for Hugging Face transformers: steer vision-language models towards what is in the picture."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .version_rudder import __version__

if TYPE_CHECKING:
    from .attach_rudder import SteeringHandle, attach, detach
    from .backbones_rudder import UnsupportedModelError
    from .configuration_rudder import RudderConfig
    from .modeling_rudder import RudderForConditionalGeneration
    from .pipelines import pipeline
    from .presets_rudder import get_preset, list_presets
    from .sharing_rudder import push_repo, write_repo
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
    "pipeline",
    "push_repo",
    "write_repo",
]

# Imported when first used: a command of `rudder` needs few of them.
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
    "pipeline": "pipelines",
    "push_repo": "sharing_rudder",
    "write_repo": "sharing_rudder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_command() -> bool:
    """Whether this process is `rudder ...` or `python -m rudder_hf...`, whose --help must not wait for torch."""
    program = sys.argv[0] if sys.argv else ""
    if program != "-m":
        return Path(program).stem == "rudder"
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    return module.split(".")[0] == __name__


if not _is_command():
    # `import rudder_hf` is enough for AutoModel and its kin to know the settings, whatever is imported first.
    from .registration import register

    register()
