"""Decoding methods against hallucination, all under one interface, on stock transformers models.

```python
from rudder_hf import methods

method = methods.get("vcd", alpha=1.0)
with method.applied(model) as generate:
    output = generate(**inputs, max_new_tokens=64)
```

RUDDER, its control experiments, and peers that need no other model: DoLa, VCD, PAI, VISTA, VTI, FLB. `base` says
what a method is; `examples/custom_method.py` adds one.
"""

from .base import BUDGET as BUDGET
from .base import CONTROL_OF as CONTROL_OF
from .base import GROUPS as GROUPS
from .base import METHODS as METHODS
from .base import NAMES as NAMES
from .base import Generate as Generate
from .base import Method as Method
from .base import Sources as Sources
from .base import get as get
from .base import grid as grid
from .base import method_class as method_class
from .base import number as number
from .base import unknown_method as unknown_method
from .branches import Branch as Branch
from .runs import LoopMethod as LoopMethod
from .runs import Run as Run
