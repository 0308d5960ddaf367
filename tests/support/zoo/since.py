"""Since which version transformers has a model type, for those that the oldest supported version lacks."""

from __future__ import annotations

import transformers

SINCE = {
    "glm5_next": (5, 17),
    "hyperclovax_vision_v2": (5, 18),
    "minicpmv4_7": (5, 18),
    "nemotron_h_omni": (5, 18),
    "molmo2": (5, 20),
    "muse_spark": (5, 20),
    "minicpm_ocr": (5, 21),
    "mistral_large4": (5, 22),
}
# There before, but not with the layers or sizes that the zoo builds them with.
BUILDABLE_SINCE = {"qwen4_exp": (5, 18), "granite4_vision": (5, 20)}
INSTALLED = tuple(int(part) for part in transformers.__version__.split(".")[:2])
MISSING = frozenset(name for name, version in {**SINCE, **BUILDABLE_SINCE}.items() if version > INSTALLED)
"""Model types that the installed transformers lacks: left out of the tests, by name."""
