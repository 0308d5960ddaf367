"""Calibration: find layer, strength and sensitivity of RUDDER for any model on a few held-out images.

```python
from rudder_hf.calibrate import CalibrationOptions, calibrate, find_data, save_outcome
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.runtime.models import load_model

loaded = load_model("llava-hf/llava-1.5-7b-hf", dtype="bfloat16", device="cuda")
data = find_data(DataOptions(Path("coco"), split="val2014"), limit=100, check=100)
outcome = calibrate(loaded, data, Path("calibration"), CalibrationOptions(objective="chair_s"))
save_outcome(outcome, Path("calibration"), "llava-hf/llava-1.5-7b-hf", loaded.revision)
```
"""

from .choice import Choice, choose
from .data import CalibrationData, data_source, find_data, pope_task
from .decoding import Decoded, decode_settings
from .layers import LayerStatistics, layer_statistics, shortlist
from .options import CalibrationOptions, Limits
from .outcome import Outcome, save_outcome
from .run import calibrate
from .settings import VANILLA, Grid, Setting

__all__ = [
    "VANILLA",
    "CalibrationData",
    "CalibrationOptions",
    "Choice",
    "Decoded",
    "Grid",
    "LayerStatistics",
    "Limits",
    "Outcome",
    "Setting",
    "calibrate",
    "choose",
    "data_source",
    "decode_settings",
    "find_data",
    "layer_statistics",
    "pope_task",
    "save_outcome",
    "shortlist",
]
