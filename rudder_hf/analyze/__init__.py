"""Look inside a model: answers token by token, the gate, the layers, and how the image turns CARD.

```python
from rudder_hf.analyze import AnalysisOptions, Study, analyze, find_images
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.runtime.models import load_model

loaded = load_model(None)  # the embedded model
study = Study(loaded, find_images(DataOptions(limit=100)), loaded.config_with({}))
numbers = analyze(Path("analysis"), study, AnalysisOptions())
numbers["geometry"]["rotation"]["mean"]  # degrees
```

`gather` runs the model, `numbers` computes, `figures` and `report` draw from the numbers alone.
Needs the extra `plots`.
"""

from ..calibrate.data import find_images
from .run import analyze, check_folder
from .study import AnalysisOptions, Study

__all__ = ["AnalysisOptions", "Study", "analyze", "check_folder", "find_images"]
