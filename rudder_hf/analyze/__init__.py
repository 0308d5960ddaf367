"""Look inside a model: answers token by token, the gate, the layers, and how the image turns CARD.

```python
from rudder_hf.analyze import Study, analyze, find_images
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.runtime.models import load_model

loaded = load_model(None)  # the embedded model
numbers = analyze(Path("analysis"), Study(loaded, find_images(DataOptions(limit=100)), loaded.config_with({})))
numbers["geometry"]["rotation"]["mean"]  # degrees
```

`run` asks the model and computes, `report` draws from the numbers alone. Needs the extra `plots`.
"""

from ..calibrate.run import find_images as find_images
from .run import Study as Study
from .run import analyze as analyze
from .run import check_analysis_folder as check_analysis_folder
