"""Calibration: find layer, strength and sensitivity of RUDDER for any model on a few held-out pictures.

```python
from rudder_hf.calibrate import CalibrationOptions, calibrate, find_data, save_outcome
from rudder_hf.runtime.models import load_subject
from rudder_hf.evaluate.tasks import DataOptions

subject = load_subject("llava-hf/llava-1.5-7b-hf", dtype="bfloat16", device="cuda")
data = find_data(DataOptions(Path("coco"), split="val2014"), pictures=100, check=100)
outcome = calibrate(subject, data, Path("calibration"), CalibrationOptions(objective="chair_s"))
save_outcome(outcome, Path("calibration"), "llava-hf/llava-1.5-7b-hf", subject.revision)
```
"""

from .data import CalibrationData, data_source, find_data, pope_task
from .decoding import Decoded, SettingsDecoder
from .grid import Grid
from .heldout import HeldOut
from .layers import LayerStatistics, layer_statistics, shortlist
from .outcome import Outcome
from .results import save_outcome
from .run import CalibrationOptions, calibrate
from .scoring import Limits
from .selection import Choice, choose
from .settings import VANILLA, Setting

__all__ = [
    "calibrate",
    "CalibrationOptions",
    "Outcome",
    "HeldOut",
    "save_outcome",
    "CalibrationData",
    "data_source",
    "find_data",
    "pope_task",
    "Grid",
    "Limits",
    "Choice",
    "choose",
    "LayerStatistics",
    "layer_statistics",
    "shortlist",
    "Setting",
    "VANILLA",
    "SettingsDecoder",
    "Decoded",
]
