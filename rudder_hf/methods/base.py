"""What a decoding method is, and the registry of all of them.

```python
method = get("vcd", alpha=0.5)
with method.applied(model) as generate:
    output = generate(**inputs, max_new_tokens=64)
```

A method is one file with one frozen dataclass of settings, which derives from `Method`, or from `runs.LoopMethod` if
it works inside the stock token loop. Whatever the commands have to know about it is declared in that class:

    defaults of the fields               the published settings, for captions
    for_questions                        what the publication changes for yes/no questions
    searched, search_space(...)          the `BUDGET` settings that `rudder compare` tunes it on
    decodings, refuses(decoding)         which of greedy search, nucleus sampling and beam search it supports
    forwards_per_token, extra_prefills   what it costs; `rudder benchmark` measures the same
    for_model(model, sources)            makes it for a model, with what it needs from `Sources`, such as caption pairs
    stand_ins(layers, hidden_size)       random values in place of these, to measure its speed with

Adding a method means writing its file and adding one line to `METHODS`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..core.backbones import model_type, without_peft
from ..core.configuration import RudderConfig
from ..core.generate import handle_of

METHODS: dict[str, str] = {
    "vanilla": "rudder:Vanilla",
    "rudder-beta": "rudder:RudderBeta",
    "rudder-add": "rudder:RudderAdd",
    "dola-low": "dola:Dola",
    "dola-high": "dola:DolaHigh",
    "vcd": "vcd:VCD",
    "pai-attention": "pai:PAIAttention",
    "pai": "pai:PAI",
    "vista-vsv": "vista:VistaSteering",
    "vista-sla": "vista:VistaAugmentation",
    "vista": "vista:Vista",
    "vti": "vti:VTI",
    "opera": "opera:Opera",
    "rudder-random": "controls:RandomDirection",
    "rudder-shuffled": "controls:ShuffledCard",
    "rudder-negated": "controls:NegatedCard",
    "rudder-text-only": "controls:TextOnlyCard",
}
"""Module of this folder and class of each method, by the name that users type. Modules are imported on demand."""

NAMES: tuple[str, ...] = tuple(METHODS)
"""Names that `get` takes: vanilla, RUDDER, peers, then controls."""

_OWN_MODULES = ("rudder", "controls")


def _names_in(module: str) -> tuple[str, ...]:
    return tuple(name for name, place in METHODS.items() if place.split(":")[0] == module)


GROUPS: dict[str, tuple[str, ...]] = {
    "all": NAMES,
    "rudder": tuple(name for name in _names_in("rudder") if name != "vanilla"),
    "peers": tuple(name for name, place in METHODS.items() if place.split(":")[0] not in _OWN_MODULES),
    "controls": _names_in("controls"),
}
"""Names that stand for several methods."""

BUDGET = 8
"""Number of settings in every search space, so that no method is tuned harder than another."""

DECODINGS = {"greedy": "greedy search", "nucleus": "nucleus sampling", "beam": "beam search"}
"""Ways to decode, in words."""

Generate = Callable[..., Any]
"""Takes what `model.generate` takes, and `sample_ids`; returns what `model.generate` returns."""
Inputs = Mapping[str, Any]
"""Inputs of `generate`: `input_ids`, `attention_mask`, `pixel_values` and so on."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where `Method.for_model` finds what a method needs beside its settings. None: this is not available.

    Attributes:
        rudder: RUDDER's settings for the model, by the name of the method.
        caption_pairs: Pairs of inputs that end in a correct and in a hallucinated caption of the same image.
        prompts: Inputs with other images, for controls that borrow from them.
    """

    rudder: Callable[[str], RudderConfig | None] | None = None
    caption_pairs: Callable[[], Iterable[tuple[Inputs, Inputs]]] | None = None
    prompts: Callable[[], Iterable[Inputs]] | None = None


class Method(ABC):
    """One decoding method; subclasses are frozen dataclasses whose fields are the method's settings.

    Attributes:
        name: What users type, and what tables say.
        for_questions: Settings that the publication changes for yes/no questions (POPE, MME).
        searched: Settings to tune the method on, gentle first, the published ones among them.
        decodings: Supported ways to decode, among `DECODINGS`.
    """

    name: ClassVar[str]
    for_questions: ClassVar[Mapping[str, Any]] = {}
    searched: ClassVar[Sequence[Mapping[str, Any]]] = ()
    decodings: ClassVar[tuple[str, ...]] = tuple(DECODINGS)

    @property
    def forwards_per_token(self) -> float:
        """Decoder forwards per generated token and row of the running batch; prefills do not count.

        Beams are rows of the batch, which every method pays for under beam search.
        """
        return 1.0

    @property
    def extra_prefills(self) -> int:
        """Prefills of the prompt, with or without its image, beyond vanilla's one."""
        return 0

    @classmethod
    def search_space(cls, hidden_norms: Mapping[int, float]) -> list[dict[str, Any]]:
        """`BUDGET` settings to tune the method on, gentle first; empty for one without any (vanilla, controls).

        Args:
            hidden_norms: Median norm of the hidden states at the two layers that suit steering best. The strength of
                a method that adds to hidden states is relative to it; others have fixed settings, `searched`.
        """
        return [dict(settings) for settings in cls.searched]

    @classmethod
    def for_model(cls, model: nn.Module, sources: Sources, **settings: Any) -> Self:
        """The method for a model, with what it needs from `sources` unless `settings` contain it.

        Raises:
            ValueError: Something that the method needs is missing, or a setting is out of range.
        """
        return cls(**settings)

    @classmethod
    def stand_ins(cls, layers: int, hidden_size: int) -> dict[str, Any]:
        """Random values for the settings that `for_model` finds in the model: they cost the same time."""
        return {}

    def refuses(self, decoding: str) -> str:
        """Why the method does not support a way to decode, one of `DECODINGS`; empty if it does."""
        if decoding in self.decodings:
            return ""
        supported = " and ".join(DECODINGS[name] for name in self.decodings)
        return f"{self.name} has no {decoding} variant, only {supported}"

    @abstractmethod
    def applied(self, model: nn.Module) -> AbstractContextManager[Generate]:
        """While the context is open, the yielded function generates with this method; then the model is as before.

        The function takes what `model.generate` takes. It also takes `sample_ids`, one string for each prompt: what a
        method draws at random is then drawn for each sample by itself, so that batches do not change a result.
        Methods without randomness ignore them.
        """

    def settings(self) -> dict[str, Any]:
        """The settings as plain JSON values; of tensors only their shape."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: plain(getattr(self, field.name)) for field in fields}


def method_class(name: str) -> type[Method]:
    """The class of a method; its module is imported now.

    Raises:
        ValueError: There is no such method.
    """
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}. Methods: {', '.join(NAMES)}.")
    module, _, attribute = METHODS[name].partition(":")
    found: type[Method] = getattr(importlib.import_module(f".{module}", __package__), attribute)
    return found


def get(name: str, **settings: Any) -> Method:
    """A method by name, with its published settings except for those given.

    Args:
        name: One of `NAMES`.
        settings: Fields of the method's class. RUDDER and its controls need `config=` or at least `layer=` and
            `alpha_max=`; "vti" needs `directions=`.

    Raises:
        ValueError: There is no such method, or a setting is out of range.
        TypeError: The method has no such setting.
    """
    return method_class(name)(**settings)


def grid(**values: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of settings; those of the first setting vary fastest."""
    combinations = itertools.product(*reversed(values.values()))
    return [dict(zip(values, reversed(combination), strict=True)) for combination in combinations]


def plain(value: Any) -> Any:
    """A setting as a JSON value; of a tensor only its shape."""
    if isinstance(value, Tensor):
        return {"shape": list(value.shape)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def check_numbers(method: Method, **ranges: tuple[float, float]) -> None:
    """Raise ValueError for a setting that is not a number of its annotated type between two others, both included."""
    annotations = {field.name: str(field.type) for field in dataclasses.fields(method)}  # type: ignore[arg-type]
    for name, (low, high) in ranges.items():
        value, annotation = getattr(method, name), annotations[name]
        if value is None and annotation.endswith("| None"):
            continue
        whole = annotation.startswith("int")
        number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
        if not number or not low <= float(value) <= high:
            what = "an integer" if whole else "a number"
            raise ValueError(f"{method.name}: `{name}` is {value!r}, but has to be {what} in [{low:g}, {high:g}].")


def refuse_steered(model: nn.Module) -> None:
    """Raise ValueError for a model that RUDDER steers already: methods start from the stock model."""
    base = without_peft(model)
    if model_type(base) == RudderConfig.model_type or handle_of(base) is not None:
        raise ValueError(
            "Methods start from the stock model, but this one is steered by RUDDER already. Pass what `.unwrap()` "
            "returns, or take RUDDER off first: `.remove()` or rudder_hf.detach(model)."
        )


def check_sample_ids(sample_ids: Sequence[str] | None, prompts: int) -> list[str]:
    """One id for each prompt: those given, or the prompts' places in the batch."""
    if sample_ids is None:
        return [f"row {prompt}" for prompt in range(prompts)]
    if isinstance(sample_ids, str) or len(sample_ids) != prompts:
        count = "one string" if isinstance(sample_ids, str) else f"{len(sample_ids)} entries"
        raise ValueError(f"sample_ids has {count} for a batch of {prompts} prompts: give a list with one id for each.")
    return [str(sample_id) for sample_id in sample_ids]


def sample_generator(seed: int, *parts: object) -> torch.Generator:
    """A random generator of a sample, wherever it is in a batch.

    It is on the CPU and seeded by a hash of the seed and of whatever distinguishes one draw from another.
    """
    digest = hashlib.sha256(repr((seed, *map(str, parts))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def sample_normal(shape: Sequence[int], seed: int, *parts: object) -> Tensor:
    """Standard normal float32 numbers of `sample_generator`, the same on every device."""
    return torch.randn(tuple(shape), generator=sample_generator(seed, *parts))
