"""Why it works, looked at: everything that the paper shows as a figure, for any model and any pictures.

```python
from rudder_hf.analyze import AnalysisOptions, analyse, find_pictures, settings_for
from rudder_hf.runtime.models import load_subject
from rudder_hf.evaluate.tasks import DataOptions

subject = load_subject(None)  # the embedded model
pictures = find_pictures(DataOptions(limit=100))
numbers = analyse(Path("analysis"), subject, pictures, settings_for(subject, {}), AnalysisOptions())
numbers["geometry"]["rotation"]["rotation_degrees"]["mean"]
```

Statistics (`geometry`, `clusters`, `evidence`, `ranks`, `detector`, `dynamics`, `ablations`) are pure functions of
arrays in the original space; `drawing/` makes figures from the numbers alone. Needs the extra `plots`.
"""

from .ablations import read_calibration
from .run import PARTS, AnalysisOptions, analyse, find_pictures, settings_for

__all__ = ["PARTS", "AnalysisOptions", "analyse", "find_pictures", "read_calibration", "settings_for"]
