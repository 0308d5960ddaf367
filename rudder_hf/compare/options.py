"""What a comparison is asked for: methods, decodings, numbers of images, and where the images come from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from ..benchmark.costs import CostSettings
from ..calibrate.choice import Rule
from ..calibrate.data import CalibrationData, find_data
from ..evaluate.run import RunOptions
from ..evaluate.tasks import DataOptions, Task, make_task
from ..evaluate.tasks.captions import coco_annotations, has_annotations
from ..methods import NAMES
from ..metrics.coco import read_coco
from ..metrics.statistics import SAMPLES
from ..runtime.decoding import DECODING_NAMES
from ..runtime.errors import InputError, check_least

POPE = "pope"


@dataclass(frozen=True)
class CompareOptions:
    """How to compare."""

    methods: tuple[str, ...] = NAMES  # vanilla is always among them
    decodings: tuple[str, ...] = ("greedy",)
    limit: int = 500  # images to evaluate captions on
    pope_limit: int = 40  # images that yes/no questions are asked about; 0 asks none
    tune_limit: int = 80  # calibration images that settings are chosen on
    rule: Rule = field(default_factory=Rule)  # what settings are chosen by
    max_new_tokens: int | None = None  # longest caption; None is the task's own
    costs: CostSettings = field(default_factory=CostSettings)
    bootstrap: int = SAMPLES
    run: RunOptions = field(default_factory=lambda: RunOptions(50))

    def __post_init__(self) -> None:
        for what, given, known in (("decoding", self.decodings, DECODING_NAMES), ("method", self.methods, NAMES)):
            if unknown := [name for name in given if name not in known]:
                raise InputError(f"there is no {what} {unknown[0]!r}; choose from {', '.join(known)}")
        check_least(self, limit=1, pope_limit=0, tune_limit=2, bootstrap=1)
        if 0 < self.pope_limit < 5:
            raise InputError(
                f"pope_limit is {self.pope_limit}; give at least 5: absent objects come from other images"
            )
        ordered = dict.fromkeys(("vanilla", *(name for name in NAMES if name in self.methods)))
        object.__setattr__(self, "methods", tuple(ordered))


@dataclass(frozen=True)
class ComparisonData:
    """The images."""

    calibration: CalibrationData  # to choose settings on
    tasks: dict[str, Task]  # to evaluate on: captions for each decoding, and yes/no questions as "pope"


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
    given = replace(source, seed=options.run.seed)
    tasks = dict.fromkeys(options.decodings, make_task(captions, replace(given, limit=options.limit)))
    if options.pope_limit:
        tasks[POPE] = make_task(questions, replace(given, limit=options.pope_limit, prompt=None))
    evaluated = {sample.image for task in tasks.values() for sample in task.samples}
    return ComparisonData(find_data(chosen_on, options.tune_limit, 0, _ids(source, evaluated)), tasks)


def _ids(source: DataOptions, files: Collection[str]) -> set[str]:
    """The ids of COCO's images by their files, which questions know alone."""
    if source.data is None:
        return set()
    instances, _ = coco_annotations(source)
    return {str(image) for image, file in read_coco(instances).files.items() if file in files}
