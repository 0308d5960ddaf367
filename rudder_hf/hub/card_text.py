"""The text of the model card: a template that `render_card` fills in, and what held-out images show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The metrics on the card, by their names in a calibration record.
_METRIC_NAMES = {
    "chair_s": "CHAIR_S",
    "chair_i": "CHAIR_I",
    "chair_i_distinct": "distinct CHAIR_I",
    "recall": "recall",
    "precision": "precision",
    "f1": "F1",
    "repeated_mentions": "repeated mentions",
    "broken_sentences": "broken sentences",
}
_DIFFERENCE = ("left", "right", "value", "low", "high")
_MOST_P_VALUE = 0.05
_HELD_OUT_NOTES = (
    "In brackets the paired 95 % interval of the change. A change is shown if its interval leaves out 0 and its "
    f"paired p-value is at most {_MOST_P_VALUE}. CHAIR_S: captions that name an object which is not in the image. "
    "CHAIR_I: such mentions among all mentions (distinct: each object of a caption once). Recall: objects of the "
    "image that are named. Vanilla: the base model as it is."
)
# `{{ package }}` keeps transformers from taking the snippet for an import of this file.
CARD_TEMPLATE = """---
{{ card_data }}
---

# RUDDER settings for {{ base }}

{% if found.calibrated -%}
Fewer objects that are not in the image, in the answers of {{ base_link }}.
{%- else -%}
Meant for fewer objects that are not in the image, in the answers of {{ base_link }}.
**These settings were not shown to help.**
{%- endif %}
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
{%- if found.held_out %}

{{ found.held_out }}
{%- endif %}
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
{%- if reported and not results %}
- The results above are the paper's. They were not measured again for this card.
{%- elif not results and not found.held_out %}
- The effect of these settings was not measured for this card.
{%- endif %}
- At best RUDDER lowers the rate of invented objects, it does not end it. It pushes towards what the prefill saw and
  cannot add detail that the vision tower lost. Stronger settings cost recall and, in the end, fluency.
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


def held_out_text(record: Mapping[str, Any]) -> str:
    """What held-out images show, by a calibration record: a table, a sentence, and how often they were looked at.

    Empty if the record has no such results.
    """
    change, less = (_differences(record.get(name)) for name in ("held_out", "held_out_minus_truncated"))
    if not change:
        return ""
    images, looks, recall = record.get("held_out_images"), record.get("held_out_looks"), change.get("recall")
    columns = {"vanilla": change}
    uncut = recall is not None and recall["right"] >= recall["left"]
    if less and not uncut:
        columns["vanilla cut to the same recall"] = less
    said = [f"Against {name} these images {_in_words(found)}." for name, found in columns.items()]
    if less and uncut:
        said.append("The settings recall no less, so that vanilla's captions need not be cut to the same recall.")
    parts = [
        f"On {len(images) if isinstance(images, list) else 'the'} held-out images, in percent:",
        _held_out_table(columns),
        _HELD_OUT_NOTES,
        " ".join(said),
    ]
    own = _differences(record.get("held_out_own_minus_other_card")).get("chair_s")
    if own is not None:
        about = "that much is about the image" if own["high"] < 0 else "the effect may not be about the image"
        parts.append(f"CHAIR_S minus that with another image's CARD: {_interval(own)}: {about}.")
    if isinstance(looks, int) and looks > 0:
        times = "one calibration has" if looks == 1 else f"{looks} calibrations have"
        luck = "" if looks == 1 else ": the more do, the likelier one of them finds a lucky choice"
        parts.append(f"By the count of its folder, {times} looked at these held-out images{luck}.")
    return "\n\n".join(parts)


def _differences(found: Any) -> dict[str, Mapping[str, float]]:
    """Those differences of a record that the card shows, by metric, in the card's order."""
    known = found if isinstance(found, Mapping) else {}
    return {
        name: known[name]
        for name in _METRIC_NAMES
        if isinstance(known.get(name), Mapping)
        and all(isinstance(known[name].get(key), (int, float)) for key in _DIFFERENCE)
    }


def _held_out_table(columns: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Every metric before and after, with the interval of its change; a column for each thing compared against."""
    rows = [["", *(f"against {name}" for name in columns)], ["---"] * (1 + len(columns))]
    for metric in columns["vanilla"]:
        row = [_METRIC_NAMES[metric]]
        for found in columns.values():
            row.append(_before_and_after(found[metric]) if metric in found else "")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _before_and_after(change: Mapping[str, float]) -> str:
    return f"{100 * change['left']:.1f} to {100 * change['right']:.1f} ({_interval(change)})"


def _interval(change: Mapping[str, float]) -> str:
    value, low, high = (100 * change[key] for key in ("value", "low", "high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _in_words(changes: Mapping[str, Mapping[str, float]]) -> str:
    """What intervals and p-values allow to be said of changes."""
    groups: dict[str, list[str]] = {"lower": [], "higher": [], "": []}
    for name, change in changes.items():
        p_value = change.get("p_value")  # old records have none
        open_ = change["low"] <= 0 <= change["high"] or (isinstance(p_value, (int, float)) and p_value > _MOST_P_VALUE)
        groups["" if open_ else "lower" if change["high"] < 0 else "higher"].append(_METRIC_NAMES[name])
    shown = " and ".join(f"{group} {', '.join(names)}" for group, names in groups.items() if group and names)
    left_open = f"leave open a change of {', '.join(groups[''])}" if groups[""] else ""
    return ", and ".join(part for part in (f"show {shown}" if shown else "", left_open) if part)
