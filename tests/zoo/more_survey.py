"""What self-attention adds to the residual stream in the less common image-text-to-text model types.

Every entry was found by reading the model type's modeling file of transformers 5.22. It begins with the kind of the
model ("decoder-only", "encoder-decoder" or "not a text generator") and ends with what a forward hook that returns
``attention output + v`` would mean, where ``h`` is the residual stream before attention and ``A`` what attention adds:

* "exact": the stream after attention is ``h + A + v``.
* "exact at X": the attention module itself is the wrong place (its output is normed, convolved or projected before it
  is added), but a hook on the module ``X`` of the layer gives ``h + A + v``.
* "scaled", "gated", "multi-stream": no module of the layer has an output to which ``v`` could be added with the
  effect ``h + A + v``; the entry says what happens instead.

``L`` stands for the path ``model.language_model.layers``.
"""

from __future__ import annotations

SURVEY: dict[str, str] = {
    "aria": "decoder-only; L (aria_text, MoE); self_attn; plain pre-norm; all layers attend; exact",
    "blip": (
        "encoder-decoder in effect (the BERT-like text decoder cross-attends to the image in every layer, the prompt"
        " is its prefix); loop text_decoder, layers text_decoder.bert.encoder.layer; attention returns LayerNorm(h +"
        " A), the module attention.self only the heads before the output projection; post-norm; exact at"
        " attention.output.dense (then normed with the stream)"
    ),
    "cohere2_vision": (
        "decoder-only; L (cohere2); self_attn; parallel residual h + A + MLP(norm(h)); all layers attend; exact, but"
        " the layer's own MLP does not see v"
    ),
    "cohere_compass": (
        "decoder-only; L (cohere_compass_text); self_attn; parallel residual; all layers attend; exact, but the"
        " layer's own MLP does not see v"
    ),
    "cosmos3_edge": "decoder-only; L (cosmos3_edge_text); self_attn; plain pre-norm; all layers attend; exact",
    "cosmos3_omni": (
        "decoder-only (reasoner part); L (qwen3_vl_text or any other); self_attn; plain pre-norm; deepstack image"
        " features are added between the first layers; all layers attend; exact"
    ),
    "deepseek_ocr2": (
        "decoder-only; L (deepseek_ocr2_text, MoE); self_attn; plain pre-norm; the vision part has a qwen2-like"
        " encoder whose layers also have a self_attn; all layers attend; exact"
    ),
    "deepseek_vl": "decoder-only; L (llama); self_attn; plain pre-norm; all layers attend; exact",
    "deepseek_vl_hybrid": "decoder-only; L (llama); self_attn; plain pre-norm; all layers attend; exact",
    "diffusion_gemma": (
        "not an autoregressive text generator (block diffusion with a generate of its own; not a GenerationMixin"
        " loop); model.decoder.layers, sandwich norm; exact at post_attention_layernorm, then the layer's output is"
        " multiplied by its layer_scalar"
    ),
    "emu3": "decoder-only; model.text_model.layers; self_attn; plain pre-norm, dropout; all layers attend; exact",
    "ernie4_5_vl_moe": (
        "decoder-only; L (ernie4_5_vl_moe_text; separate experts for text and image tokens); self_attn; plain"
        " pre-norm, the add is A + h; all layers attend; exact"
    ),
    "evolla": (
        "decoder-only, but the input is a protein, not an image; model.layers; self_attn; plain pre-norm; some"
        " layers have a cross-attention adapter after the MLP; all layers attend; exact"
    ),
    "exaone4_5": (
        "decoder-only; L (exaone4); self_attn; post-norm of the sublayer: h + norm(A), no norm before attention; all"
        " layers attend; exact at post_attention_layernorm"
    ),
    "florence2": (
        "encoder-decoder; model.language_model.decoder.layers (bart); self_attn; post-norm LayerNorm(h + A), then"
        " cross-attention; exact, then normed with the stream"
    ),
    "gemma3n": (
        "decoder-only; L (gemma3n_text); self_attn then post_attention_layernorm; multi-stream (AltUp): A is added"
        " to one predicted stream together with laurel, (p + A + laurel) / sqrt(2), and the difference to the"
        " prediction is spread over all streams; the layer's hidden states are 4-dimensional, streams first;"
        " multi-stream: v enters as v / sqrt(2) times learned coefficients per stream"
    ),
    "gemma4": (
        "decoder-only; L (gemma4_text); sandwich norm; per-layer inputs after the MLP, the layer's output is"
        " multiplied in place by the buffer layer_scalar (1 when untrained); the last layers can share keys and"
        " values of earlier ones; all layers attend; exact at post_attention_layernorm (v leaves the layer times"
        " layer_scalar)"
    ),
    "gemma4_unified": (
        "decoder-only; L (gemma4_unified_text); sandwich norm, layer_scalar as in gemma4; all layers attend; exact"
        " at post_attention_layernorm (v leaves the layer times layer_scalar)"
    ),
    "git": (
        "decoder-only (image features are a prefix that input_ids do not show); git.encoder.layer; attention;"
        " post-norm: attention returns LayerNorm(h + A); attention.self gives the heads before the output projection;"
        " all layers attend; exact at attention.output.dense (then normed with the stream)"
    ),
    "glm46v": (
        "decoder-only; L (glm4v_text); sandwich norm: the norm after attention is post_self_attn_layernorm, while"
        " post_attention_layernorm is the norm before the MLP; all layers attend; exact at post_self_attn_layernorm"
    ),
    "glm4v_moe": "decoder-only; L (glm4v_moe_text); self_attn; plain pre-norm; all layers attend; exact",
    "glm5_next": (
        "decoder-only; L (glm5_next_text); self_attn is linear attention in layers of type linear_attention and"
        " returns a tensor there, a 3-tuple in the others; multi-stream (hyper-connections): the stream has hc_mult"
        " copies, new = post x A + comb^T x streams; multi-stream: v enters copy i times the data-dependent weight"
        " post_i in (0, 2)"
    ),
    "glm_ocr": (
        "decoder-only; L (glm_ocr_text); sandwich norm as in glm4v; all layers attend; exact at"
        " post_self_attn_layernorm"
    ),
    "glmga": "decoder-only; same classes as glm46v; exact at post_self_attn_layernorm",
    "got_ocr2": "decoder-only; L (qwen2); self_attn; plain pre-norm; all layers attend; exact",
    "granite4_vision": (
        "decoder-only; L (granite4_vision_text); self_attn; pre-norm with h + residual_multiplier x A; deepstack"
        " image features are added between layers; all layers attend; scaled: h + m A + m v with m ="
        " config.residual_multiplier (exact if m is 1, or if the hook adds v / m)"
    ),
    "hunyuan_vl": "decoder-only; L (hunyuan_vl_text); self_attn; plain pre-norm; all layers attend; exact",
    "hyperclovax_vision_v2": (
        "decoder-only; L (hyperclovax); self_attn then post_norm1 (Identity unless use_post_norm) then times"
        " residual_multiplier; all layers attend; scaled: at post_norm1 h + m A + m v with m = residual_multiplier"
    ),
    "idefics": (
        "decoder-only with gated cross-attention blocks in a ModuleList of their own (model.gated_cross_attn_layers)"
        " run before every cross_layer_interval-th layer; model.layers; self_attn; plain pre-norm; all of"
        " model.layers attend; exact"
    ),
    "inkling_mm_model": (
        "decoder-only; L (inkling_text); self_attn then attn_sconv, a causal short convolution over time with a"
        " state in the cache, then the add; pre-norm; all layers attend; on self_attn v would be convolved with its"
        " past and kept in the conv state; exact at attn_sconv"
    ),
    "instructblipvideo": (
        "decoder-only with an OPT-like language model (encoder-decoder with T5); loop language_model, layers"
        " language_model.model.decoder.layers; self_attn; pre-norm (OPT with do_layer_norm_before False: post-norm);"
        " all layers attend; exact"
    ),
    "kimi_k25": "decoder-only; L (deepseek_v3, latent attention, MoE); self_attn; plain pre-norm; exact",
    "kosmos-2": (
        "decoder-only; loop text_model, layers text_model.model.layers; self_attn (inner norm before its output"
        " projection); plain pre-norm; all layers attend; exact"
    ),
    "kosmos-2.5": (
        "decoder-only; loop is the model itself (it prepares inputs through text_model); layers"
        " text_model.model.layers; self_attn; plain pre-norm; all layers attend; exact"
    ),
    "lighton_ocr": "decoder-only; L (qwen3); self_attn; plain pre-norm; all layers attend; exact",
    "llava_next_video": "decoder-only; L (llama); self_attn; plain pre-norm; all layers attend; exact",
    "minicpm_ocr": (
        "decoder-only; L (qwen3_5_text); plain pre-norm; layers of type linear_attention have linear_attn instead of"
        " self_attn; exact"
    ),
    "minicpmv4_6": (
        "decoder-only; L (qwen3_5_text); plain pre-norm; layers of type linear_attention have linear_attn instead of"
        " self_attn; exact"
    ),
    "minicpmv4_7": (
        "decoder-only; L (qwen3_5_text); plain pre-norm; layers of type linear_attention have linear_attn instead of"
        " self_attn; exact"
    ),
    "minimax_m3_vl": (
        "decoder-only; L (minimax_m3_vl_text; some layers with block-sparse attention and an indexer); self_attn;"
        " plain pre-norm; all layers attend; exact"
    ),
    "mistral4": (
        "decoder-only and text-only (Mistral4ForCausalLM takes no pixel values); model.layers; self_attn (latent"
        " attention); plain pre-norm; all layers attend; exact"
    ),
    "mistral_large4": (
        "decoder-only; L (mistral_large4_text; sparse attention with indexer, shared keys and values); self_attn"
        " returns a 3-tuple, the layer a 2-tuple; plain pre-norm; all layers attend; exact"
    ),
    "muse_glimmer": (
        "decoder-only; L (muse_glimmer_text); sandwich norm; all layers attend; exact at post_attention_layernorm"
    ),
    "muse_spark": (
        "decoder-only; L (muse_spark_text); self_attn, post_attention_layernorm, then a residual gate alpha h + beta"
        " A with learned vectors (post_attention_residual_gate); all layers attend; gated: at"
        " post_attention_layernorm the stream becomes alpha h + beta A + beta v; at post_attention_residual_gate it"
        " is alpha h + beta A + v"
    ),
    "nemotron_h_omni": (
        "decoder-only; language_model.model.layers (nemotron_h, a whole causal model); every layer has one mixer"
        " only: Mamba (linear_attention), attention (full_attention), MoE or MLP; mixer; plain pre-norm; only layers"
        " of type full_attention attend, and their layer has no MLP; exact at mixer"
    ),
    "paddleocr_vl": "decoder-only; L (paddleocr_vl_text); self_attn; plain pre-norm; all layers attend; exact",
    "perception_lm": "decoder-only; L (llama); self_attn; plain pre-norm; all layers attend; exact",
    "pi0": "not a text generator (flow matching for robot actions, sample_actions; no GenerationMixin)",
    "pix2struct": (
        "encoder-decoder (image patches only in the encoder); decoder.layer; self_attention returns h + A, the"
        " module self_attention.attention A itself as first of three values; pre-norm, then cross-attention; exact at"
        " self_attention.attention"
    ),
    "pp_chart2table": "decoder-only; same classes as got_ocr2; exact",
    "pp_formulanet": (
        "encoder-decoder; model.decoder.layers; self_attn; pre-norm, then cross-attention; the text is generated"
        " from the decoder start token alone; exact"
    ),
    "qianfan_ocr": "decoder-only; L (qwen3); self_attn; plain pre-norm; all layers attend; exact",
    "qwen2_5_omni_thinker": "decoder-only; L (qwen2_5_omni_text); self_attn; plain pre-norm; all layers attend; exact",
    "qwen3_5": (
        "decoder-only; L (qwen3_5_text); self_attn (output gated inside, before o_proj); plain pre-norm; layers of"
        " type linear_attention have linear_attn instead; exact"
    ),
    "qwen3_5_moe": "decoder-only; L (qwen3_5_moe_text); as qwen3_5 with MoE; exact",
    "qwen3_omni_moe_thinker": (
        "decoder-only; L (qwen3_omni_moe_text); self_attn; plain pre-norm; deepstack image features are added"
        " between the first layers; all layers attend; exact"
    ),
    "qwen4_exp": (
        "decoder-only; L (qwen4_exp_text); layers of type linear_attention have linear_attn instead of self_attn;"
        " multi-stream (hyper-connections): the layer's hidden states have hc_count x hidden_size features, new ="
        " streams + injection_weight_i x A; multi-stream: v enters stream i times a data-dependent weight in (0, 2)"
    ),
    "shieldgemma2": (
        "decoder-only; same generator class as gemma3 (Gemma3ForConditionalGeneration; the ShieldGemma2 classifier"
        " wraps it); sandwich norm; exact at post_attention_layernorm"
    ),
    "step3p7": (
        "decoder-only; L (step3p5; number of heads per layer differs); self_attn (heads gated inside, before"
        " o_proj); plain pre-norm; all layers attend; exact"
    ),
    "t5gemma2": (
        "encoder-decoder; model.decoder.layers; self_attn is one merged attention over the decoder's own tokens and"
        " the encoder's, returns a 3-tuple; sandwich norm; exact at post_self_attn_layernorm (A includes"
        " cross-attention)"
    ),
    "udop": (
        "encoder-decoder; decoder.block; layer.0 returns h + A, layer.0.SelfAttention A itself as first of three"
        " values; pre-norm, then cross-attention; exact at layer.0.SelfAttention"
    ),
    "unlimited_ocr": (
        "decoder-only; L (unlimited_ocr_text, MoE); self_attn; plain pre-norm; a generation mixin of its own with a"
        " sliding window that keeps the prompt; all layers attend; exact"
    ),
    "video_llama_3": "decoder-only; L (qwen2); self_attn; plain pre-norm; all layers attend; exact",
    "vision-encoder-decoder": (
        "encoder-decoder (any vision encoder, any causal decoder with cross-attention, e.g. gpt2 or bert); where and"
        " how attention is added depends on the decoder: gpt2 decoder.transformer.h, attn, pre-norm, exact; bert"
        " decoder.bert.encoder.layer, post-norm, exact at attention.output.dense"
    ),
}
