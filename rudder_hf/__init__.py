"""RUDDER for Hugging Face transformers: steer vision-language models towards what is in the picture."""

from .attach_rudder import SteeringHandle, attach
from .backbones_rudder import UnsupportedModelError
from .configuration_rudder import RudderConfig
from .modeling_rudder import RudderForConditionalGeneration
from .presets_rudder import get_preset, list_presets
from .request_rudder import RudderWarning
from .trace_rudder import RudderTrace

__version__ = "0.1.0"

__all__ = [
    "RudderConfig",
    "RudderForConditionalGeneration",
    "RudderTrace",
    "RudderWarning",
    "SteeringHandle",
    "UnsupportedModelError",
    "attach",
    "get_preset",
    "list_presets",
]
