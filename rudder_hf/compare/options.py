"""What a comparison is asked for: methods, decodings, numbers of images, and where the images come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..benchmark.costs import CostSettings
from ..benchmark.timing import VANILLA
from ..calibrate.data import CalibrationData, find_data
from ..calibrate.settings import CalibrationOptions
from ..evaluate.statements import MARGIN
from ..evaluate.tasks import DataOptions, Task, make_task
from ..evaluate.tasks.captions import coco_annotations, has_annotations
from ..methods import NAMES
from ..metrics.coco import read_coco
from ..metrics.errors import InputError, check_least
from ..metrics.statistics import SAMPLES
from .table import DECODINGS


@dataclass(frozen=True)
class CompareOptions:
    """How to compare.

    Attributes:
        methods: Which; vanilla is always among them.
        decodings: "greedy", "beam", "nucleus".
        limit: Number of images to evaluate captions on.
        beam_limit: The same for beam search, which takes many times as long.
        pope_limit: Number of images that yes/no questions are asked about.
        tune_limit: Number of calibration images that settings are chosen on.
        tune_beam_limit: How many of them for methods that know beam search only.
        everywhere: Whether controls, and published settings beside tuned ones, are also run under the later decodings.
        calibration: Objective, limits and bootstrap of the choice; longest caption, of the evaluation too.
        costs: How costs are measured; number of beams, of the evaluation too.
        top_p: Of nucleus sampling.
        batch_size: Images per batch.
        bootstrap: Draws for intervals.
        margin: Share of RUDDER's own change within which a control counts as without effect.
        seed: Of everything that is drawn.
        command: What the user typed.
    """

    methods: tuple[str, ...] = NAMES
    decodings: tuple[str, ...] = tuple(DECODINGS)
    limit: int = 500
    beam_limit: int = 100
    pope_limit: int = 40
    tune_limit: int = 80
    tune_beam_limit: int = 20
    everywhere: bool = False
    calibration: CalibrationOptions = field(default_factory=CalibrationOptions)
    costs: CostSettings = field(default_factory=CostSettings)
    top_p: float = 0.9
    batch_size: int = 50
    bootstrap: int = SAMPLES
    margin: float = MARGIN
    seed: int = 0
    command: str = ""

    def __post_init__(self) -> None:
        for what, given, known in (("decoding", self.decodings, DECODINGS), ("method", self.methods, NAMES)):
            if unknown := [name for name in given if name not in known]:
                raise InputError(f"there is no {what} {unknown[0]!r}; choose from {', '.join(known)}")
        # Absent objects to ask for come from the other images of POPE.
        check_least(self, limit=1, beam_limit=1, pope_limit=5, tune_limit=2, tune_beam_limit=2)
        check_least(self, batch_size=1, bootstrap=1)
        ordered = dict.fromkeys((VANILLA, *(name for name in NAMES if name in self.methods)))
        object.__setattr__(self, "methods", tuple(ordered))

    def record(self) -> dict[str, Any]:
        """What decides about the result, as JSON values."""
        return {name: value for name, value in asdict(self).items() if name not in ("command", "batch_size")}


@dataclass(frozen=True)
class ComparisonData:
    """The images.

    Attributes:
        calibration: To choose settings on.
        captions: For each decoding, to evaluate captions on.
        questions: Yes/no questions.
    """

    calibration: CalibrationData
    captions: Mapping[str, Task]
    questions: Task


def find_images(source: DataOptions, options: CompareOptions) -> ComparisonData:
    """The embedded scenes, or COCO if the source has data.

    Images to evaluate on are those that `rudder evaluate` draws; settings are chosen on none of them.

    Raises:
        InputError: There are too few images, or they have no annotations.
    """
    if source.data is not None and source.data.is_dir() and not has_annotations(source.data):
        raise InputError("methods are compared on annotated images: give COCO's folder")
    captions, questions = ("scenes", "scenes-pope") if source.data is None else ("chair", "pope")
    # Settings are chosen on a split of the scenes of its own, whichever other one is evaluated.
    chosen_on = replace(source, split=None) if source.data is None else source
    if source.data is None and source.split == "calibration":
        raise InputError("settings are chosen on the split calibration of the scenes: evaluate on another one")
    given = replace(source, seed=options.seed)
    sizes = {name: options.beam_limit if name == "beam" else options.limit for name in options.decodings}
    described = {name: make_task(captions, replace(given, limit=size)) for name, size in sizes.items()}
    asked = make_task(questions, replace(given, limit=options.pope_limit, prompt=None))
    evaluated = {sample.image for task in (*described.values(), asked) for sample in task.samples}
    return ComparisonData(find_data(chosen_on, options.tune_limit, 0, _ids(source, evaluated)), described, asked)


def _ids(source: DataOptions, files: Collection[str]) -> set[str]:
    """The ids of COCO's images by their files, which questions know alone."""
    if source.data is None:
        return set()
    instances, _ = coco_annotations(source)
    return {str(image) for image, file in read_coco(instances).files.items() if file in files}
