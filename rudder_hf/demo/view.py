"""What the page can be set to, and its own HTML, as pure functions. The HTML loads nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..analyze.tokens import (
    SCALE,
    TOKEN_CSS,
    TracedAnswer,
    escape,
    mark_differences,
    numbers_html,
    token_view,
    tokens_html,
)
from ..core.settings import check_setting
from ..scenes.embedded import examples

PRESET_NAMES = ("off", "calibrated", "strong")
LONGEST_PROMPT = 2000  # characters
SETTINGS = {
    "alpha_max": "strength of the push",
    "k": "sensitivity of the gate",
    "contrast": "contrast of image values: not in the paper",
}
"""The settings of `RudderConfig` that the page has sliders for, and what they are."""


@dataclass(frozen=True)
class View:
    """Everything that the page can be set to, except an image of the visitor's own."""

    example: int | None  # number of an example image from 1 on; None for another image
    prompt: str
    settings: Mapping[str, Any]  # `SETTINGS` with their values, as `RudderConfig` has them

    @classmethod
    def from_controls(cls, example: int | None, prompt: Any, values: Sequence[Any]) -> View:
        """Return the view that the page's controls hold; `values` are those of `SETTINGS`.

        Raises:
            ValueError: A control was emptied, or a setting or the prompt is out of range.
        """
        given = dict(zip(SETTINGS, values, strict=True))
        if empty := [name for name, value in given.items() if value is None]:
            raise ValueError(f"{', '.join(empty)} is empty: choose a value.")
        prompt = str(prompt or "")
        if not prompt.strip() or len(prompt) > LONGEST_PROMPT:
            raise ValueError(
                f"prompt has {len(prompt)} characters, but has to have 1 to {LONGEST_PROMPT}, not all blank."
            )
        return cls(example, prompt, {name: check_setting(name, value) for name, value in given.items()})


@dataclass(frozen=True)
class Frame:
    """Both answers as far as they are written, at first empty; `done` when no more comes, `stopped` if it could."""

    vanilla: TracedAnswer = field(default_factory=TracedAnswer)
    steered: TracedAnswer = field(default_factory=TracedAnswer)
    done: bool = False
    stopped: bool = False


def slider_ranges(own: Mapping[str, Any]) -> dict[str, tuple[float, float, float, float]]:
    """Return lowest and highest value, the model's own value and the step of each slider."""
    strongest = float(f"{3 * own['alpha_max'] or 1.0:.2g}")
    return {
        "alpha_max": (0, strongest, own["alpha_max"], float(f"{10.0 ** (math.floor(math.log10(strongest)) - 3):.0e}")),
        "k": (0, max(20, math.ceil(own["k"])), own["k"], 0.1),
        "contrast": (0, max(2, math.ceil(own["contrast"])), own["contrast"], 0.05),
    }


def preset(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one of `PRESET_NAMES`: nothing on, the model's own, or twice their strength."""
    changes = {"off": {"alpha_max": 0.0, "contrast": 0.0}, "strong": {"alpha_max": 2 * own["alpha_max"]}}
    return {**own, **changes.get(name, {})}


def preset_of(view: View, own: Mapping[str, Any]) -> str | None:
    """Return the preset that a view has; None for settings of the visitor's own."""
    return next((name for name in PRESET_NAMES if preset(name, own) == dict(view.settings)), None)


# HTML

# Colours are the theme's, so that its dark form is readable by itself. A narrow window has one column: what is asked,
# the answers, other examples.
CSS = f"""
.gradio-container {{ max-width: 1280px !important; margin: 0 auto !important; color-scheme: light; }}
.dark .gradio-container {{ color-scheme: dark; }}
.gradio-container .html-container {{ padding: 0; }}
.rudder-head h1 {{ font-size: 1.5rem; margin: 0 0 .25rem; }}
.rudder-head p, .status, .legend, .note {{ margin: 0; }}
#answers, #settings .form {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); }}
#settings .form {{ background: none; }}
#image img {{ width: 100%; height: 100%; object-fit: contain; image-rendering: pixelated; }}
#examples {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(4.8rem, 1fr)); gap: .4rem; }}
#examples button {{ flex-direction: column; gap: .2rem; padding: .3rem; min-width: 0; font-size: .8rem; }}
#examples button img {{ width: 100%; height: auto; margin: 0; }}
.answer {{ background: var(--block-background-fill); border: 1px solid var(--border-color-primary);
  border-radius: 8px; padding: .75rem 1rem; height: 100%; }}
.answer h3 {{ margin: 0 0 .5rem; font-size: 1rem; }}
.answer .tokens {{ margin: 0; min-height: 8rem; }}
.answer .verdict {{ margin: .5rem 0 0; min-height: 1.5rem; font-size: .9rem; }}
.legend, .note {{ font-size: .9rem; }}
.status {{ font-weight: 600; }} #status:not(:has(p)), #note:not(:has(p)) {{ display: none; }}
.gradio-container :is(.min_value, .max_value, .or) {{ color: var(--block-info-text-color); }}
input[type=range]::-webkit-slider-thumb {{ outline: 1px solid #71717a; }}
footer {{ display: none !important; }}
@media (max-width: 900px) {{
  #page {{ flex-direction: column; }} #page > .column {{ display: contents; }}
  #status, #note, #answers, #legend {{ order: 1; }} #more, #advanced {{ order: 2; }}
}}
{TOKEN_CSS}"""

# Enforced by the browser: the page cannot ask anybody but the server that it came from.
ONLY_THIS_SERVER = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; form-action 'self'; base-uri 'self'"

ORIGINAL = "Original model (vanilla)"
LEGEND = (
    f'<p class="legend">{SCALE} gate: share of alpha_max that was added when the word was '
    "written. Point at a word for its numbers, or open the table below an answer.</p>"
)


def head(name: str, note: str, summary: str) -> str:
    """Return the title and the first lines, with what the example scenes show in all."""
    lines = [
        f"Model: {escape(name)}. {escape(note)} Choose an example or give it an image. Both answers are written at "
        "the same time; colours show where RUDDER pushed. In examples, objects that are not in the image are "
        "<del>struck out</del>, and those that are in it underlined.",
        escape(summary),
    ]
    paragraphs = "".join(f"<p>{line}</p>" for line in lines if line)
    return f'<div class="rudder-head"><h1>Original model vs. RUDDER</h1>{paragraphs}</div>'


def note(text: str) -> str:
    """Return a remark beside the answers; empty for none."""
    return f'<p class="note">{escape(text)}</p>' if text else ""


def status(text: str) -> str:
    """Return the line above the answers: what to do, what was wrong, or whether the answers differ."""
    return f'<p class="status" role="status">{escape(text)}</p>' if text else ""


def steered_title(settings: Mapping[str, Any]) -> str:
    """Return the title of the steered answer: what is on."""
    names = {"alpha_max": "RUDDER", "contrast": "contrast"}
    on = [name for setting, name in names.items() if settings[setting] > 0]
    return f"With {' and '.join(on)}" if on else "RUDDER is off"


def panel(heading: str, body: str = "", below: str = "", numbers: str = "") -> str:
    """Return a titled box around an answer, with the numbers of its tokens as a table that a key opens."""
    return (
        f'<section class="answer"><h3>{escape(heading)}</h3><p class="tokens">{body}</p>'
        f'<p class="verdict">{below}</p>{numbers}</section>'
    )


def answer_verdict(absent: Sequence[str] | None, done: bool, stopped: bool = False) -> str:
    """Return the line below an answer: absent objects, if it is known what is there, and whether it was stopped."""
    parts = ["Stopped early."] if stopped else []
    if absent:
        names = ", ".join(f"<del>{escape(name)}</del>" for name in dict.fromkeys(absent))
        parts.append(f"Not in the image: {names}")
    elif done and not stopped and absent is not None:
        parts.append("Names no object that is not in the image.")
    return " ".join(parts)


def paint(view: View, frame: Frame) -> tuple[list[str], str]:
    """Return both answers as far as they are written, and whether they differ, as HTML."""
    present = None if view.example is None else frozenset(examples()[view.example - 1].names)
    views = [token_view(answer, present) for answer in (frame.vanilla, frame.steered)]
    result = ""
    if frame.done and not frame.stopped:
        result = "The answers differ in the framed words." if mark_differences(*views) else "Same answer."
    panels = []
    for heading, shown in zip((ORIGINAL, steered_title(view.settings)), views, strict=True):
        body = tokens_html(shown["tokens"]) or ("" if frame.stopped else "Waiting for the model …")
        below = answer_verdict(shown["absent"], frame.done, frame.stopped)
        panels.append(panel(heading, body, below, numbers_html(shown["tokens"]) if frame.done else ""))
    return panels, status(result)
