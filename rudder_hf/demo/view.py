"""What the page can be set to, and its own HTML, as pure functions.

Settings have limits that fit the model; links reproduce them, and config.json saves them. The HTML has no font, script
or image from elsewhere.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

from ..analyze.tokens import TOKEN_CSS, TracedAnswer, escape, scale_html
from ..core.configuration import RudderConfig, check_setting
from ..core.trust import is_on_hub

COLOURS = ("gate", "similarity")
LONGEST_PROMPT = 2000  # characters
LARGEST_K = 20.0


@dataclass(frozen=True)
class View:
    """Everything that the page can be set to, except an image of the visitor's own.

    Attributes:
        example: Number of an example image from 1 on; None for another image.
        prompt: What the model is asked.
        mode: "beta" or "add".
        layer: Decoder layer, from 0 on.
        alpha_max: Strength of the push.
        k: Sensitivity of the gate.
        colour: What tokens are shaded by, "gate" or "similarity".
    """

    example: int | None
    prompt: str
    mode: str
    layer: int
    alpha_max: float
    k: float
    colour: str = "gate"

    @classmethod
    def from_controls(cls, example: int | None, prompt: Any, **values: Any) -> View:
        """The view from what the page's controls hold.

        Raises:
            ValueError: A control was emptied.
        """
        empty = [name for name, value in values.items() if value is None]
        if empty:
            raise ValueError(f"{', '.join(empty)} is empty: choose a value.")
        return cls(example, str(prompt or ""), **{name: _KINDS[name](value) for name, value in values.items()})

    def query(self) -> str:
        """The view as query parameters, which `read_query` reads."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return urlencode({name: repr(value) if isinstance(value, float) else value for name, value in values.items()})


# The layer comes before the strength: it decides which strengths are allowed.
_KINDS: dict[str, Any] = {
    "example": int, "prompt": str, "mode": str, "layer": int, "alpha_max": float, "k": float, "colour": str,
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What can be set on a model.

    Attributes:
        hidden_norms: Layer that can be steered -> usual length of its hidden states.
        examples: Number of example images.
        settings: The model's own layer, alpha_max and k: always within the limits.
    """

    hidden_norms: Mapping[int, float]
    examples: int
    settings: tuple[int, float, float]

    @property
    def largest_k(self) -> float:
        """End of the slider for k."""
        return max(LARGEST_K, math.ceil(self.settings[2]))

    @property
    def layers(self) -> str:
        """The layers that can be steered, in words: a range if there is no gap."""
        layers = sorted(self.hidden_norms)
        if layers == list(range(layers[0], layers[-1] + 1)):
            return f"{layers[0]} to {layers[-1]}"
        return "one of " + ", ".join(map(str, layers))

    def largest_alpha(self, layer: int) -> float:
        """A push as long as the hidden state itself, rounded up to two digits."""
        norm = self.hidden_norms[layer]
        if layer == self.settings[0]:
            norm = max(norm, self.settings[1])
        unit = 10.0 ** (math.floor(math.log10(norm)) - 1)
        return float(f"{math.ceil(norm / unit) * unit:.3g}")

    def alpha_step(self, layer: int) -> float:
        """Steps of the slider: fine enough for four digits."""
        return float(f"{10.0 ** (math.floor(math.log10(self.largest_alpha(layer))) - 3):.0e}")

    def fitted(self, view: View) -> View:
        """The view with a strength that its layer allows: it was chosen for another, whose states may be longer."""
        if view.layer not in self.hidden_norms:
            return view
        return replace(view, alpha_max=min(view.alpha_max, self.largest_alpha(view.layer)))

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
        check_setting("mode", view.mode)
        if view.colour not in COLOURS:
            raise ValueError(f"colour is {view.colour!r}, but has to be one of {', '.join(COLOURS)}.")
        if view.layer not in self.hidden_norms:
            raise ValueError(f"layer is {view.layer}, but has to be {self.layers}.")
        largest = {"alpha_max": self.largest_alpha(view.layer), "k": self.largest_k}
        for name, most in largest.items():
            value = getattr(view, name)
            if not 0 <= value <= most:  # not so for NaN either
                raise ValueError(f"{name} is {value:g}, but has to be 0 to {most:g} (at layer {view.layer}).")

    def strength_note(self, view: View) -> str:
        """How strong alpha_max is on the view's layer, in words."""
        norm = self.hidden_norms.get(view.layer)
        if norm is None:
            return f"Layer {view.layer} has no self-attention to steer: choose {self.layers}."
        gate = "constant" if view.mode == "add" else "before the gate, which lets less through"
        return (
            f"Hidden states at layer {view.layer} are about {norm:.3g} long: "
            f"alpha_max {view.alpha_max:g} is {100 * view.alpha_max / norm:.0f} % of that, {gate}."
        )


def read_query(query: Mapping[str, str], default: View, limits: Limits) -> tuple[View, list[str]]:
    """The view that a link describes, and what in it was left out because the model cannot show it.

    Nothing in a link is an error: whatever is missing or wrong stays as in `default`. Other parameters than a view's
    (Spaces add some) are not looked at.
    """
    view, notes = default, []
    for name, kind in _KINDS.items():
        if name not in query:
            continue
        given = query[name] if len(query[name]) <= 40 else query[name][:40] + "…"
        try:
            changed = replace(view, **{name: kind(query[name])})
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
    saved.take({"layer": view.layer, "mode": view.mode, "alpha_max": view.alpha_max, "k": view.k})
    base = config.base_model_name_or_path
    if base is not None and not keep_folder and not is_on_hub(base):
        saved.base_model_name_or_path = saved.base_model_revision = None
    return str(saved.to_json_string())


# HTML

# Answers stand on white in the dark theme too, so that a colour always means the same.
CSS = f"""
.gradio-container {{ max-width: 1280px !important; margin: 0 auto !important; }}
.rudder-head h1 {{ font-size: 1.5rem; margin: 0 0 .25rem; }}
.rudder-head p {{ margin: 0; }}
.answer {{ background: #fff; color: #111; border: 1px solid #8a8a8a; border-radius: 8px; padding: .75rem 1rem; }}
.answer h3 {{ margin: 0 0 .5rem; color: #111; font-size: 1rem; }}
.answer .tokens {{ margin: 0; min-height: 9rem; }}
.answer .verdict {{ margin: .5rem 0 0; min-height: 1.5rem; color: #111; font-size: .9rem; }}
.answer .waiting {{ color: #595959; }}
.legend, .notes {{ margin: 0; font-size: .9rem; }}
.keep {{ display: flex; flex-wrap: wrap; align-items: center; gap: .75rem; font-size: .95rem; }}
.keep a.save {{ background: #08306b; color: #fff !important; padding: .45rem .9rem; border-radius: 6px;
  text-decoration: none; }}
.keep a.link {{ text-decoration: underline; }}
footer {{ display: none !important; }}
@media (max-width: 640px) {{ #vanilla, #steered {{ min-width: 100% !important; }} }}
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


def panel(title: str, body: str, verdict: str, waiting: str) -> str:
    """A titled box around an answer; `waiting` stands in it while there is none."""
    body = body or f'<span class="waiting">{escape(waiting)}</span>'
    return (
        f'<section class="answer"><h3>{escape(title)}</h3><p class="tokens">{body}</p>'
        f'<p class="verdict">{verdict}</p></section>'
    )


def verdict(absent: Sequence[str] | None, done: bool) -> str:
    """The line below an answer about absent objects; empty if it is not known what is in the image."""
    if absent is None or not (done or absent):
        return ""
    if not absent:
        return "Names nothing that is not in the image."
    return f"Not in the image: {', '.join(f'<del>{escape(name)}</del>' for name in dict.fromkeys(absent))}"


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
    return f'<p class="legend">{scale_html(scale)} {escape(_MEANINGS[colour])}. Hover for numbers.</p>'


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
