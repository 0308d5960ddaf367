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

from .base import (
    BUDGET,
    CONTROL_OF,
    GROUPS,
    METHODS,
    NAMES,
    Generate,
    Method,
    Sources,
    get,
    grid,
    method_class,
    number,
    unknown_method,
)
from .branches import Branch
from .runs import LoopMethod, Run

__all__ = [
    "BUDGET",
    "CONTROL_OF",
    "GROUPS",
    "METHODS",
    "NAMES",
    "Branch",
    "Generate",
    "LoopMethod",
    "Method",
    "Run",
    "Sources",
    "get",
    "grid",
    "method_class",
    "number",
    "unknown_method",
]
