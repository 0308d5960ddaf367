"""Model types of transformers: which are tested, which cannot be steered and why.

`python -m tools.support_table` prints the table for the installed transformers.
"""

from __future__ import annotations

_ENCODER_DECODER = (
    "it is an encoder-decoder: the image is read by the encoder, so that no decoder self-attention reads image and "
    "prompt together in a prefill"
)
_MANY_STREAMS = (
    "it keeps several residual streams and mixes them with learned weights, so that 'the residual stream right after "
    "self-attention' (Eq. 5) does not exist"
)
REFUSED: dict[str, str] = {
    "blip": _ENCODER_DECODER,
    "florence2": _ENCODER_DECODER,
    "pix2struct": _ENCODER_DECODER,
    "pp_formulanet": _ENCODER_DECODER,
    "t5gemma2": _ENCODER_DECODER,
    "udop": _ENCODER_DECODER,
    "vision-encoder-decoder": _ENCODER_DECODER,
    "gemma3n": _MANY_STREAMS,
    "glm5_next": _MANY_STREAMS,
    "qwen4_exp": _MANY_STREAMS,
    "muse_spark": "it gates residual stream and attention output with learned vectors, so that Eq. 5 does not exist",
    "git": "its layers are post-norm, so that the attention output is not a residual update (Eq. 1), and its image "
    "positions are not part of the prompt's ids",
    "diffusion_gemma": "it writes blocks of text by diffusion, not token by token",
    "pi0": "it produces robot actions, not text",
    "mistral4": "it takes no image",
    "evolla": "it reads proteins, not images",
}
"""Model types that cannot be steered, with the reason."""


TESTED = frozenset(
    """
    aria aya_vision blip-2 chameleon cohere2_vision cohere_compass cosmos3_edge cosmos3_omni deepseek_vl
    deepseek_vl_hybrid emu3 ernie4_5_vl_moe exaone4_5 fast_vlm fuyu gemma3 gemma4 gemma4_unified glm46v glm4v
    glm4v_moe glm_ocr glmga got_ocr2 granite4_vision hunyuan_vl hyperclovax_vision_v2 idefics idefics2 idefics3
    inkling_mm_model instructblip instructblipvideo internvl janus kimi_k25 kosmos-2 kosmos-2.5 lfm2_vl lighton_ocr
    llama4 llava llava_next llava_next_video llava_onevision minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m3_vl
    mistral3 mistral_large4 mllama molmo2 muse_glimmer nemotron_h_omni ovis2 paddleocr_vl paligemma pp_chart2table
    qianfan_ocr qwen2_5_omni_thinker qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_omni_moe_thinker qwen3_vl
    qwen3_vl_moe shieldgemma2 smolvlm step3p7 video_llama_3 video_llava vipllava
    """.split()  # noqa: SIM905 - one name a line would hide the list
)
"""Model types whose steering is tested against a slow reference on a tiny model."""


def support(model_type: str) -> str:
    """The verdict on a `model_type`: "supported" (tested), "refused", or "unknown" (the general rule is tried)."""
    if model_type in REFUSED:
        return "refused"
    return "supported" if model_type in TESTED else "unknown"
