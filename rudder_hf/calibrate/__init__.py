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

from .choice import Rule
from .report import config_of, save_outcome
from .run import CalibrationData, Outcome, calibrate, find_data
from .search import CalibrationOptions, Grid, layer_statistics

__all__ = [
    "CalibrationData",
    "CalibrationOptions",
    "Grid",
    "Outcome",
    "Rule",
    "calibrate",
    "config_of",
    "find_data",
    "layer_statistics",
    "save_outcome",
]
