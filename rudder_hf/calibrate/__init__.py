"""Calibration: find layer, strength and sensitivity of RUDDER for any model on a few held-out images.

```python
from rudder_hf.calibrate import CalibrationOptions, calibrate, find_data, save_outcome
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.runtime.models import load_model

loaded = load_model("llava-hf/llava-1.5-7b-hf", dtype="bfloat16", device="cuda")
data = find_data(DataOptions(Path("coco"), split="val2014"), limit=100, check=100)
outcome = calibrate(loaded, data, Path("calibration"), CalibrationOptions())
save_outcome(outcome, Path("calibration"), "llava-hf/llava-1.5-7b-hf", loaded.revision)
```
"""

from .choice import Limits
from .data import CalibrationData, data_source, find_data, pope_task
from .decoding import decode_settings
from .layers import layer_statistics
from .outcome import Outcome, save_outcome
from .run import calibrate
from .settings import VANILLA, CalibrationOptions, Grid, Setting

__all__ = [
    "VANILLA",
    "CalibrationData",
    "CalibrationOptions",
    "Grid",
    "Limits",
    "Outcome",
    "Setting",
    "calibrate",
    "data_source",
    "decode_settings",
    "find_data",
    "layer_statistics",
    "pope_task",
    "save_outcome",
]
