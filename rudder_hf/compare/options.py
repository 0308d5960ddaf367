"""What a comparison is asked for: methods, decodings, numbers of pictures, and where these come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..benchmark.bench import VANILLA
from ..benchmark.costs import CostSettings
from ..calibrate.data import CalibrationData, find_data
from ..calibrate.options import CalibrationOptions
from ..evaluate.tasks import DataOptions, Task, make_task
from ..methods import NAMES
from ..metrics.errors import InputError
from ..metrics.statistics import SAMPLES

DECODINGS = ("greedy", "beam", "nucleus")
LEAST_ASKED = 5


@dataclass(frozen=True)
class CompareOptions:
    """How to compare.

    Attributes:
        methods: Which; vanilla is always among them.
        decodings: "greedy", "beam", "nucleus".
        pictures: Calibration pictures that settings are chosen on.
        beam_pictures: How many of them for methods that know beam search only, which takes many times as long.
        scenes: Pictures to evaluate captions on.
        beam_scenes: The same for beam search.
        pope_scenes: Pictures that yes/no questions are asked about.
        everywhere: Whether controls, and published settings beside tuned ones, are also run under the later decodings.
        calibration: Objective, limits and bootstrap of the choice.
        costs: How costs are measured.
        max_new_tokens: Longest caption; None is the task's own.
        num_beams: Of beam search.
        top_p: Of nucleus sampling.
        batch_size: Pictures per batch.
        bootstrap: Draws for intervals.
        seed: Of everything that is drawn.
        command: What the user typed.
    """

    methods: tuple[str, ...] = NAMES
    decodings: tuple[str, ...] = DECODINGS
    pictures: int = 80
    beam_pictures: int = 20
    scenes: int = 500
    beam_scenes: int = 100
    pope_scenes: int = 40
    everywhere: bool = False
    calibration: CalibrationOptions = field(default_factory=CalibrationOptions)
    costs: CostSettings = field(default_factory=CostSettings)
    max_new_tokens: int | None = None
    num_beams: int = 5
    top_p: float = 0.9
    batch_size: int = 50
    bootstrap: int = SAMPLES
    seed: int = 0
    command: str = ""

    def __post_init__(self) -> None:
        if wrong := [name for name in self.decodings if name not in DECODINGS] or not self.decodings:
            raise InputError(f"there is no decoding {wrong}; choose from {', '.join(DECODINGS)}")
        for name in ("pictures", "beam_pictures", "scenes", "beam_scenes", "batch_size", "bootstrap"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give at least 1")
        if self.pope_scenes < LEAST_ASKED:
            raise InputError(
                f"pope_scenes is {self.pope_scenes}; give at least {LEAST_ASKED}: absent objects to ask for come from "
                "the other pictures"
            )
        ordered = dict.fromkeys((VANILLA, *(name for name in NAMES if name in self.methods)))
        if unknown := [name for name in self.methods if name not in NAMES]:
            raise InputError(f"there is no method {unknown[0]!r}; methods: {', '.join(NAMES)}")
        object.__setattr__(self, "methods", tuple(ordered))
        # One longest caption for tuning and evaluation.
        object.__setattr__(self, "calibration", replace(self.calibration, max_new_tokens=self.max_new_tokens))

    def record(self) -> dict[str, Any]:
        """What decides about the result, as JSON values."""
        record = asdict(self)
        for name in ("command", "batch_size"):
            del record[name]
        return json.loads(json.dumps(record))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ComparisonData:
    """The pictures.

    Attributes:
        calibration: To choose settings on.
        captions: For each decoding, to evaluate captions on.
        questions: Yes/no questions.
    """

    calibration: CalibrationData
    captions: Mapping[str, Task]
    questions: Task


def find_pictures(source: DataOptions, options: CompareOptions) -> ComparisonData:
    """The embedded scenes, or COCO if the source has data.

    Raises:
        InputError: There are too few pictures, or they have no annotations.
    """
    calibration = find_data(source, options.pictures, 0)
    if not calibration.labelled:
        raise InputError("methods are compared on annotated pictures: give COCO's folder")
    kinds = ("scenes", "scenes-pope") if source.data is None else ("chair", "pope")
    given = asdict(source) | {"seed": options.seed}
    # The scenes to calibrate on are a split of their own; COCO's are kept apart by `find_data`.
    given["split"] = None if source.data is None else source.split
    sizes = {name: options.beam_scenes if name == "beam" else options.scenes for name in options.decodings}
    captions = {name: make_task(kinds[0], DataOptions(**{**given, "limit": size})) for name, size in sizes.items()}
    questions = make_task(kinds[1], DataOptions(**{**given, "limit": options.pope_scenes, "prompt": None}))
    return ComparisonData(calibration, captions, questions)
