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

from ..calibrate.run import find_images
from .run import Study, analyze, check_folder

__all__ = ["Study", "analyze", "check_folder", "find_images"]
