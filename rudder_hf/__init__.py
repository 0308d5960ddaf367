"""RUDDER for Hugging Face transformers: steer vision-language models towards what is in the image."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.version import __version__

if TYPE_CHECKING:
    from .core.attach import attach as attach
    from .core.attach import detach as detach
    from .core.configuration import RudderConfig as RudderConfig
    from .core.errors import RudderWarning as RudderWarning
    from .core.errors import UnsupportedModelError as UnsupportedModelError
    from .core.handle import SteeringHandle as SteeringHandle
    from .core.state import RudderTrace as RudderTrace
    from .hub.modeling import RudderForConditionalGeneration as RudderForConditionalGeneration
    from .hub.pipelines import pipeline as pipeline
    from .hub.push import push_repo as push_repo
    from .hub.push import write_repo as write_repo
    from .presets import get_preset as get_preset
    from .presets import list_presets as list_presets

# Imported when first used: a command of `rudder` needs few of them.
_HOMES = {
    "RudderConfig": "core.configuration",
    "RudderForConditionalGeneration": "hub.modeling",
    "RudderTrace": "core.state",
    "RudderWarning": "core.errors",
    "SteeringHandle": "core.handle",
    "UnsupportedModelError": "core.errors",
    "attach": "core.attach",
    "detach": "core.attach",
    "get_preset": "presets",
    "list_presets": "presets",
    "pipeline": "hub.pipelines",
    "push_repo": "hub.push",
    "write_repo": "hub.push",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def _is_command() -> bool:
    """Whether this process is `rudder ...` or `python -m rudder_hf...`, whose --help must not wait for torch."""
    program = sys.argv[0] if sys.argv else ""
    if program != "-m":
        # As installers name the command; a script of the user's that is called rudder.py is none.
        return Path(program).name in ("rudder", "rudder.exe")
    # The module stands before its arguments: `-m NAME`, `-um NAME` or `-mNAME`.
    module = re.sub("^-[a-zA-Z]*?m", "", sys.orig_argv[-len(sys.argv)])
    return module.split(".")[0] == __name__


def _register_auto_classes() -> None:
    """Make the Auto classes of transformers know RUDDER settings, so that loading them runs the installed code."""
    import transformers

    from .core.configuration import RudderConfig
    from .hub.loading import RudderProcessor
    from .hub.modeling import RudderForConditionalGeneration, RudderInPlace

    transformers.AutoConfig.register(RudderConfig.model_type, RudderConfig, exist_ok=True)
    for name in ("AutoModel", "AutoModelForImageTextToText", "AutoModelForMultimodalLM"):
        getattr(transformers, name).register(RudderConfig, RudderForConditionalGeneration, exist_ok=True)
    transformers.AutoModelForCausalLM.register(RudderConfig, RudderInPlace, exist_ok=True)
    transformers.AutoProcessor.register(RudderConfig, RudderProcessor, exist_ok=True)


# `import rudder_hf` is enough for the Auto classes to know the settings, whatever is imported first.
if not _is_command():
    _register_auto_classes()
