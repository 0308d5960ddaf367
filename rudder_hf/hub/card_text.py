"""The text of the model card, as a template that `render_card` fills in."""

from __future__ import annotations

# `{{ package }}` keeps transformers from taking the snippet for an import of this file.
CARD_TEMPLATE = """---
{{ card_data }}
---

# RUDDER settings for {{ base }}

Fewer objects that are not in the image, in the answers of {{ base_link }}.
RUDDER reads, while the prompt is prefilled, what one decoder layer's self-attention adds to the residual stream, and
adds that direction (CARD) back while the answer is decoded, scaled per token by a gate. No training, no second model,
no extra forward pass.

**This repository holds settings and code, no weights**: the base model is loaded from its own repository
{%- if revision %}, at revision `{{ revision }}`{% endif %}.
{%- if not found.calibrated %}

> [!WARNING]
> {{ found.headline }}
{%- endif %}

## How to load

transformers {{ transformers_needed }} or later.

```python
from transformers import AutoModel, AutoProcessor
{%- if not chats %}
from transformers.image_utils import load_image
{%- endif %}

model = AutoModel.from_pretrained("{{ repo }}", trust_remote_code=True)
processor = AutoProcessor.from_pretrained("{{ repo }}", trust_remote_code=True)

{% if chats -%}
chat = [{"role": "user", "content": [
    {"type": "image", "url": "picture.jpg"},
    {"type": "text", "text": "Please help me describe the image in detail"},
]}]
inputs = processor.apply_chat_template(
    chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
).to(model.device)
{% else -%}
inputs = processor(
    images=load_image("picture.jpg"), text="Please help me describe the image in detail", return_tensors="pt"
).to(model.device)
{% endif -%}
out = model.generate(**inputs, max_new_tokens=512)                # steered
out = model.generate(**inputs, max_new_tokens=512, rudder=False)  # the base model as it is
```

As a pipeline:

```python
from transformers import pipeline

captioner = pipeline("image-to-text", model="{{ repo }}", trust_remote_code=True)
captioner("picture.jpg", max_new_tokens=64)
```

On a model that you have loaded already:

```python
out = model.generate(**inputs, custom_generate="{{ repo }}", trust_remote_code=True)
```

With the `{{ package }}` package installed, no remote code runs and no trust is asked for:

```python
from {{ package }} import RudderForConditionalGeneration

model = RudderForConditionalGeneration.from_pretrained("{{ repo }}")
```

`trust_remote_code=True` trusts this repository's code, not the base's: a base that needs code of its own also needs
`base_trust_remote_code=True`. Pin what you have read with `revision="<commit>"`.

## Settings

| setting | value | meaning |
|---|---|---|
{% for name, value, meaning in settings -%}
| `{{ name }}` | {{ value }} | {{ meaning }} |
{% endfor %}
Written by `{{ package }}` {{ version }}. Any of them can be set at load (`alpha_max=11.0`), all but the
layer also for one call (`rudder={"alpha_max": 11.0}`).
{%- if contrast %}

**These settings go beyond the paper**: `contrast` moves the image's cached values away from their mean, once, when
`contrast_after` answer tokens have been emitted. The paper neither describes nor measures it, and its results do not
stand for these settings. `contrast=0.0` switches it off. It is related to cache steering
([arXiv 2507.08799](https://arxiv.org/abs/2507.08799)), KVSmooth ([2602.04268](https://arxiv.org/abs/2602.04268)) and
PruneHal ([2510.19183](https://arxiv.org/abs/2510.19183)).
{%- endif %}

## How the settings were found

{{ found.headline }}
{% for line in found.details %}
- {{ line }}
{%- endfor %}
{%- if reported %}

The paper's results with these settings (greedy decoding, the paper's code and measurement):

| | vanilla | RUDDER-Beta |
|---|---|---|
{% for name, (before, after) in reported.items() -%}
| {{ name }} | {{ before }} | {{ after }} |
{% endfor %}
{%- endif %}
{%- if results %}

## Evaluation

| dataset | metric | value |
|---|---|---|
{% for dataset, metric, value in results -%}
| {{ dataset }} | {{ metric }} | {{ value }} |
{% endfor %}
{%- endif %}

## Limits

- The settings belong to {{ base }}. On another model the same strength can do nothing, or break sentences.
{%- if not results %}
- The effect of these settings was not measured for this card.
{%- endif %}
- RUDDER lowers the rate of invented objects, it does not end it. It pushes towards what the prefill saw and cannot add
  detail that the vision tower lost. Stronger settings cost recall and, in the end, fluency.
- A prompt without an image is left unsteered, with a warning.
{%- if not first_token %}
- The first answer token is not steered, so that one-word answers (POPE, MME) are those of the base model, whatever the
  paper reports for them; `steer_first_token=True` steers it.
{%- endif %}
- Licence, biases and limits of the base model apply to what it writes.

## Citation

```bibtex
@inproceedings{zou2026rudder,
  title     = {{ '{' }}{{ title }}{{ '}' }},
  author    = {Zou, Zhengtao and Gao, Ya and Guan, Jiarui and Li, Bin and Marttinen, Pekka},
  booktitle = {International Conference on Machine Learning (ICML)},
  year      = {2026}
}
```

`{{ package }}`, whose code this repository carries, is an independent implementation under the Apache License 2.0.
"""
