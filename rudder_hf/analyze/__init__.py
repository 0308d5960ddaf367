"""Why RUDDER works: everything that the paper shows as a figure, for any model and any images.

```python
from rudder_hf.analyze import AnalysisOptions, Study, analyze, find_images
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.runtime.models import load_model

loaded = load_model(None)  # the embedded model
study = Study(loaded, find_images(DataOptions(limit=100)), loaded.config_with({}))
numbers = analyze(Path("analysis"), study, AnalysisOptions())
numbers["geometry"]["rotation"]["rotation_degrees"]["mean"]
```

Statistics (`geometry`, `evidence`, `detector`) are pure functions of arrays in the original space;
`figures/` draws from the numbers alone. Needs the extra `plots`.
"""

from ..calibrate.data import find_images
from .run import analyze, check_folder, read_calibration
from .study import PARTS, AnalysisOptions, Study

__all__ = [
    "PARTS",
    "AnalysisOptions",
    "Study",
    "analyze",
    "check_folder",
    "find_images",
    "read_calibration",
]
