"""What the page can be set to, and its own HTML, as pure functions.

Settings have limits that fit the model; links reproduce them, and config.json saves them. The HTML has no font, script
or image from elsewhere.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from ..analyze.tokens import TOKEN_CSS, TracedAnswer, escape, scale_html
from ..core.configuration import MODES, RudderConfig, check_setting
from ..core.trust import is_on_hub

COLOURS = ("gate", "similarity")
CHOICES = {"mode": MODES, "span": ("prompt", "text", "image"), "colour": COLOURS}
LONGEST_PROMPT = 2000  # characters
ROWS: tuple[dict[str, str], ...] = (
    {
        "mode": "gated (beta) or constant (add)",
        "span": "which tokens of the prompt make CARD",
        "steer_first_token": "steer the first token too",
    },
    {"layer": "where CARD is read and added", "alpha_max": "strength of the push", "k": "sensitivity of the gate"},
    {
        "contrast": "contrast of image values: beyond the paper",
        "contrast_after": "answer tokens before the contrast",
        "contrast_first_layer": "first layer of the contrast",
    },
)
"""The settings of `RudderConfig` that the page shows, row by row, and what they are."""
# A link is read in this order: the layer decides which strengths are allowed.
SETTINGS = tuple(name for row in ROWS for name in row)


@dataclass(frozen=True)
class View:
    """Everything that the page can be set to, except an image of the visitor's own.

    Attributes:
        example: Number of an example image from 1 on; None for another image.
        prompt: What the model is asked.
        settings: `SETTINGS` with their values, as `RudderConfig` has them; the layer from 0 on.
        colour: What tokens are shaded by, "gate" or "similarity".
    """

    example: int | None
    prompt: str
    settings: Mapping[str, Any]
    colour: str = "gate"

    @classmethod
    def from_controls(cls, example: int | None, prompt: Any, colour: str, values: Sequence[Any]) -> View:
        """The view from what the page's controls hold; `values` are those of `SETTINGS`.

        Raises:
            ValueError: A control was emptied.
        """
        given = dict(zip(SETTINGS, values, strict=True))
        if empty := [name for name, value in given.items() if value is None]:
            raise ValueError(f"{', '.join(empty)} is empty: choose a value.")
        return cls(example, str(prompt or ""), {name: _typed(name, value) for name, value in given.items()}, colour)

    def changed(self, name: str, value: Any) -> View:
        """The view with another setting, example, prompt or colour."""
        if name in SETTINGS:
            return replace(self, settings={**self.settings, name: value})
        return replace(self, **{name: value})

    def query(self) -> str:
        """The view as query parameters, which `read_query` reads."""
        values = {"example": self.example, "prompt": self.prompt, **self.settings, "colour": self.colour}
        return urlencode({name: str(value) for name, value in values.items() if value is not None})


def _typed(name: str, value: Any) -> Any:
    """What a link or a control holds, as the type that it stands for."""
    kind: Any = int if name == "example" else type(getattr(RudderConfig, name, ""))
    return {"True": True, "False": False}.get(value, value) if kind is bool else kind(value)


@dataclass(frozen=True)
class Limits:
    """What can be set on a model.

    Attributes:
        hidden_norms: Layer that can be steered -> usual length of its hidden states.
        examples: Number of example images.
        own: The model's own settings: always within the limits.
    """

    hidden_norms: Mapping[int, float]
    examples: int
    own: Mapping[str, Any]

    def ranges(self, layer: int) -> dict[str, tuple[float, float, float]]:
        """Lowest value, highest value and step of each slider, with the strengths that fit a layer."""
        # A push as long as the hidden state itself, rounded up to two digits, in steps for four.
        norm = self.hidden_norms[layer]
        if layer == self.own["layer"]:
            norm = max(norm, self.own["alpha_max"])
        digits = math.floor(math.log10(norm))
        strongest = float(f"{math.ceil(norm / 10.0 ** (digits - 1)) * 10.0 ** (digits - 1):.3g}")
        last = max(self.hidden_norms)
        return {
            "layer": (0, last, 1),
            "alpha_max": (0, strongest, float(f"{10.0 ** (math.floor(math.log10(strongest)) - 3):.0e}")),
            "k": (0, max(20, math.ceil(self.own["k"])), 0.1),
            "contrast": (0, max(2, math.ceil(self.own["contrast"])), 0.05),
            "contrast_after": (1, max(32, self.own["contrast_after"]), 1),
            "contrast_first_layer": (0, max(last, self.own["contrast_first_layer"]), 1),
        }

    def fitted(self, view: View) -> View:
        """The view with a strength that its layer allows: it was chosen for another, whose states may be longer."""
        layer = view.settings["layer"]
        if layer not in self.hidden_norms:
            return view
        return view.changed("alpha_max", min(view.settings["alpha_max"], self.ranges(layer)["alpha_max"][1]))

    def check(self, view: View) -> None:
        """Refuse a view that the model cannot show.

        Raises:
            ValueError: A setting is out of range; it is named with what is allowed.
        """
        if view.example is not None and not 1 <= view.example <= self.examples:
            raise ValueError(f"example is {view.example}, but has to be 1 to {self.examples}.")
        if not view.prompt.strip() or len(view.prompt) > LONGEST_PROMPT:
            raise ValueError(
                f"prompt has {len(view.prompt)} characters, but has to have 1 to {LONGEST_PROMPT}, not all blank."
            )
        if view.colour not in COLOURS:
            raise ValueError(f"colour is {view.colour!r}, but has to be one of {', '.join(COLOURS)}.")
        layer = view.settings["layer"]
        if layer not in self.hidden_norms:
            raise ValueError(f"layer is {layer}, but has to be one of {', '.join(map(str, self.hidden_norms))}.")
        ranges = self.ranges(layer)
        for name, value in view.settings.items():
            if name not in ranges:
                check_setting(name, value)
                continue
            low, high, _ = ranges[name]
            if not low <= value <= high:  # not so for NaN either
                raise ValueError(f"{name} is {value:g}, but has to be {low:g} to {high:g} (at layer {layer}).")

    def strength_note(self, view: View) -> str:
        """How strong alpha_max is on the view's layer, in words."""
        layer, alpha_max = view.settings["layer"], view.settings["alpha_max"]
        norm = self.hidden_norms[layer]
        gate = "constant" if view.settings["mode"] == "add" else "before the gate, which lets less through"
        return (
            f"Hidden states at layer {layer} are about {norm:.3g} long: "
            f"alpha_max {alpha_max:g} is {100 * alpha_max / norm:.0f} % of that, {gate}."
        )


def read_query(query: Mapping[str, str], default: View, limits: Limits) -> tuple[View, list[str]]:
    """The view that a link describes, and what in it was left out because the model cannot show it.

    Nothing in a link is an error: whatever is missing or wrong stays as in `default`. Other parameters than a view's
    (Spaces add some) are not looked at.
    """
    view, notes = default, []
    for name in ("example", "prompt", *SETTINGS, "colour"):
        if name not in query:
            continue
        given = query[name] if len(query[name]) <= 40 else query[name][:40] + "…"
        try:
            changed = view.changed(name, _typed(name, query[name]))
        except ValueError:
            notes.append(f"The link's {name}={given} was left out: that is no number.")
            continue
        if name == "layer":
            changed = limits.fitted(changed)
        try:
            limits.check(changed)
        except ValueError as error:
            notes.append(f"The link's {name}={given} was left out: {error}")
            continue
        view = changed
    return view, notes


def config_json(view: View, config: RudderConfig, keep_folder: bool) -> str:
    """The view's settings as the config.json that `RudderConfig.from_pretrained` reads.

    Args:
        view: What to save.
        config: The model's settings: what the page does not show stays as it is, the calibration record too, which
            says for itself what was found and what was changed since.
        keep_folder: Whether a base model that lies in a folder of this machine is named.
    """
    saved = RudderConfig.from_dict(config.to_diff_dict())
    saved.take(dict(view.settings))
    base = config.base_model_name_or_path
    if base is not None and not keep_folder and not is_on_hub(base):
        saved.base_model_name_or_path = saved.base_model_revision = None
        record = saved.calibration or {}
        if isinstance(model := record.get("model"), dict):
            saved.calibration = record | {"model": model | {"name": None}}
    return str(saved.to_json_string())


# HTML

# Colours are the theme's, so that its dark form is readable by itself. A narrow window has one column: what is asked,
# the answers, other examples, the settings.
CSS = f"""
.gradio-container {{ max-width: 1280px !important; margin: 0 auto !important; color-scheme: light; }}
.dark .gradio-container {{ color-scheme: dark; }}
.gradio-container .html-container {{ padding: 0; }}
.rudder-head h1 {{ font-size: 1.5rem; margin: 0 0 .25rem; }}
.rudder-head p, .status, .legend, .notes {{ margin: 0; }}
#answers, #colours, .settings .form {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); }}
#examples .gallery {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(4.2rem, 1fr)); }}
.answer {{ background: var(--block-background-fill); border: 1px solid var(--border-color-primary);
  border-radius: 8px; padding: .75rem 1rem; height: 100%; }}
.answer h3 {{ margin: 0 0 .5rem; font-size: 1rem; }}
.answer .tokens {{ margin: 0; min-height: 8rem; }}
.answer .verdict {{ margin: .5rem 0 0; min-height: 1.5rem; font-size: .9rem; }}
.legend, .notes {{ font-size: .9rem; }}
.status {{ font-weight: 600; }} #status:not(:has(p)) {{ display: none; }}
.keep {{ display: flex; flex-wrap: wrap; align-items: center; gap: .75rem; font-size: .95rem; }}
.keep a.save {{ background: #08306b; color: #fff; padding: .45rem .9rem; border-radius: 6px; text-decoration: none; }}
.gradio-container :is(.min_value, .max_value, .or) {{ color: var(--block-info-text-color); }}
input[type=range]::-webkit-slider-thumb {{ outline: 1px solid #71717a; }}
footer {{ display: none !important; }}
@media (max-width: 900px) {{
  #page {{ flex-direction: column; }} #page > .column {{ display: contents; }}
  #status, #answers, #colours {{ order: 1; }} #examples {{ order: 2; }} .settings, #notes, #keep {{ order: 3; }}
}}
{TOKEN_CSS}"""

# Enforced by the browser: the page cannot ask anybody but the server that it came from.
ONLY_THIS_SERVER = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; form-action 'self'; base-uri 'self'"

_MEANINGS = {
    "gate": "gate: share of alpha_max that was added when the word was written",
    "similarity": "similarity: cosine of CARD and the hidden state that wrote the word",
}


def head(name: str, note: str) -> str:
    """Title and first lines."""
    return (
        '<div class="rudder-head"><h1>RUDDER, beside the model as it is</h1>'
        f"<p>Model: {escape(name)}. {escape(note)} Give it an image or choose an example: both answers are written at "
        "the same time, and colours show where RUDDER pushed. In examples, objects that are not in the image are "
        "<del>struck out</del>, and those that are in it underlined.</p></div>"
    )


def notes(lines: Sequence[str]) -> str:
    """Remarks below the controls."""
    return "".join(f'<p class="notes">{escape(line)}</p>' for line in lines)


def status(text: str) -> str:
    """The line above the answers while there are none: what to do, or what was wrong."""
    return f'<p class="status" role="status">{escape(text)}</p>' if text else ""


def panel(title: str, body: str = "", verdict: str = "") -> str:
    """A titled box around an answer."""
    return (
        f'<section class="answer"><h3>{escape(title)}</h3><p class="tokens">{body}</p>'
        f'<p class="verdict">{verdict}</p></section>'
    )


def verdict(absent: Sequence[str] | None, done: bool, stopped: bool = False) -> str:
    """The line below an answer: absent objects, if it is known what is in the image, and whether it was stopped."""
    parts = ["Stopped early."] if stopped else []
    if absent:
        names = ", ".join(f"<del>{escape(name)}</del>" for name in dict.fromkeys(absent))
        parts.append(f"Not in the image: {names}")
    elif done and not stopped and absent is not None:
        parts.append("Names no object that is not in the image.")
    return " ".join(parts)


def colour_scale(answers: Sequence[TracedAnswer], colour: str) -> tuple[float, float]:
    """The values that get the lightest and the darkest shade: one scale for both answers.

    The gate's is 0 to 1; the similarity's what occurs, to the next tenth.
    """
    if colour == "gate":
        return 0.0, 1.0
    values = [value for answer in answers for value in answer.trace.get(colour, ()) if math.isfinite(value)]
    if not values:
        return 0.0, 1.0
    low, high = math.floor(10 * min(values)) / 10, math.ceil(10 * max(values)) / 10
    return low, max(high, round(low + 0.1, 1))


def legend(colour: str, scale: Sequence[float]) -> str:
    """The scale of the shades, and what they mean."""
    meaning = f"{_MEANINGS[colour]}. Point at a word or tap it for its numbers."
    return f'<p class="legend">{scale_html(scale)} {escape(meaning)}</p>'


def keep_links(view: View, config_text: str) -> str:
    """The button that saves the settings and the link that reproduces the view, as HTML."""
    encoded = base64.b64encode(config_text.encode()).decode()
    query = escape(view.query())
    own = " (without your image, which stays with you)" if view.example is None else ""
    return (
        '<div class="keep">'
        f'<a class="save" download="config.json" href="data:application/json;base64,{encoded}">Save settings</a>'
        f'<a class="link" href="?{query}" target="_blank" rel="noopener">Link to this view</a>{own}</div>'
    )
