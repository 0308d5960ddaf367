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

from .choice import Rule as Rule
from .report import config_of as config_of
from .report import save_outcome as save_outcome
from .run import CalibrationData as CalibrationData
from .run import Outcome as Outcome
from .run import calibrate as calibrate
from .run import find_data as find_data
from .search import CalibrationOptions as CalibrationOptions
from .search import Grid as Grid
from .search import layer_statistics as layer_statistics
