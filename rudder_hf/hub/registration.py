"""Making the Auto classes of transformers know RUDDER settings, so that loading them runs the installed code."""

from __future__ import annotations

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoProcessor,
)

from ..core.configuration import RudderConfig
from .modeling import RudderForConditionalGeneration, RudderInPlace
from .processing import RudderProcessor


def register_auto_classes() -> None:
    """Register with the Auto classes. Twice is harmless."""
    AutoConfig.register(RudderConfig.model_type, RudderConfig, exist_ok=True)
    for auto_class in (AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM):
        auto_class.register(RudderConfig, RudderForConditionalGeneration, exist_ok=True)
    AutoModelForCausalLM.register(RudderConfig, RudderInPlace, exist_ok=True)
    AutoProcessor.register(RudderConfig, RudderProcessor, exist_ok=True)
