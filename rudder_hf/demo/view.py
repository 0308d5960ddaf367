"""What the page shows as values: settings with limits that fit the model, links that reproduce them, config.json."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

from ..core.configuration import MODES, RudderConfig, check_setting
from ..core.trust import is_on_hub
from .tokens import COLOURS, escape

LONGEST_PROMPT = 2000  # characters
LARGEST_K = 20.0


@dataclass(frozen=True)
class View:
    """Everything that the page can be set to, but for a picture of the visitor's own.

    Attributes:
        example: Number of an example picture from 1 on; None for another picture.
        prompt: What the model is asked.
        mode: "beta" or "add".
        layer: Decoder layer, from 0 on.
        alpha_max: Strength of the push.
        k: Sensitivity of the gate.
        colour: What tokens are coloured by, "gate" or "similarity".
    """

    example: int | None
    prompt: str
    mode: str
    layer: int
    alpha_max: float
    k: float
    colour: str = "gate"

    def query(self) -> str:
        """The view as query parameters, which `read_query` reads."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return urlencode({name: repr(value) if isinstance(value, float) else value for name, value in values.items()})


@dataclass(frozen=True)
class Limits:
    """What can be set on a model.

    Attributes:
        hidden_norms: Layer that can be steered -> usual length of its hidden states.
        examples: Number of example pictures.
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
    def last_layer(self) -> int:
        """The last layer that can be steered."""
        return max(self.hidden_norms)

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
            raise ValueError(f"layer is {view.layer}, but has to be {_listed(sorted(self.hidden_norms))}.")
        for name, value, largest in (
            ("alpha_max", view.alpha_max, self.largest_alpha(view.layer)),
            ("k", view.k, self.largest_k),
        ):
            if not 0 <= value <= largest:  # not so for NaN either
                raise ValueError(f"{name} is {value:g}, but has to be 0 to {largest:g} (at layer {view.layer}).")


def _listed(layers: list[int]) -> str:
    """Layers in words: a range if there is no gap."""
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return "one of " + ", ".join(map(str, layers))


def default_view(limits: Limits, mode: str, prompt: str, example: int) -> View:
    """The view that the page opens with: the model's own settings."""
    layer, alpha_max, k = limits.settings
    return View(example, prompt, mode, layer, alpha_max, k)


def read_query(query: Mapping[str, str], default: View, limits: Limits) -> tuple[View, list[str]]:
    """The view that a link describes, and what in it was left out because the model cannot show it.

    Nothing in a link is an error: whatever is missing or wrong stays as in `default`. Other parameters than a view's
    (Spaces add some) are not looked at.
    """
    view, notes = default, []
    # The layer first: it decides which strengths are allowed.
    for name in ("example", "prompt", "mode", "layer", "alpha_max", "k", "colour"):
        if name not in query:
            continue
        given = query[name] if len(query[name]) <= 40 else query[name][:40] + "…"
        kind: Any = int if name in ("example", "layer") else float if name in ("alpha_max", "k") else str
        try:
            value: Any = kind(query[name])
        except ValueError:
            notes.append(f"The link's {name}={given} was left out: that is no number.")
            continue
        changed = replace(view, **{name: value})
        if name == "layer" and changed.layer in limits.hidden_norms:
            # A strength for another layer need not fit this one.
            changed = replace(changed, alpha_max=min(view.alpha_max, limits.largest_alpha(changed.layer)))
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


def keep_links(view: View, config_text: str) -> str:
    """The button that saves the settings and the link that reproduces the view, as HTML."""
    encoded = base64.b64encode(config_text.encode()).decode()
    query = escape(view.query())
    own = " (without your picture, which stays with you)" if view.example is None else ""
    return (
        '<div class="keep">'
        f'<a class="save" download="config.json" href="data:application/json;base64,{encoded}">Save settings</a>'
        f'<a class="link" href="?{query}" target="_blank" rel="noopener">Link to this view</a>{own}</div>'
    )


def strength_note(view: View, limits: Limits) -> str:
    """How strong alpha_max is on this layer, in words."""
    norm = limits.hidden_norms.get(view.layer)
    if norm is None:
        return f"Layer {view.layer} has no self-attention to steer: choose {_listed(sorted(limits.hidden_norms))}."
    share = 100 * view.alpha_max / norm
    gate = "constant" if view.mode == "add" else "before the gate, which lets less through"
    return (
        f"Hidden states at layer {view.layer} are about {norm:.3g} long: "
        f"alpha_max {view.alpha_max:g} is {share:.0f} % of that, {gate}."
    )


def view_of(values: Mapping[str, Any], example: int | None) -> View:
    """The view from what the page's controls hold.

    Raises:
        ValueError: A control was emptied.
    """
    empty = [name for name in ("mode", "layer", "alpha_max", "k", "colour") if values.get(name) is None]
    if empty:
        raise ValueError(f"{', '.join(empty)} is empty: choose a value.")
    return View(
        example=example,
        prompt=str(values.get("prompt") or ""),
        mode=str(values["mode"]),
        layer=int(values["layer"]),
        alpha_max=float(values["alpha_max"]),
        k=float(values["k"]),
        colour=str(values["colour"]),
    )


__all__ = [
    "LONGEST_PROMPT",
    "MODES",
    "Limits",
    "View",
    "config_json",
    "default_view",
    "keep_links",
    "read_query",
    "strength_note",
    "view_of",
]
