"""What decoding methods cost beside vanilla: throughput, forwards, operators and memory.

Run it with `rudder benchmark`, or from Python:

```python
from rudder_hf.benchmark import SHAPES, BenchmarkSettings, run_benchmark, shape_model

settings = BenchmarkSettings(rounds=15)
report = run_benchmark([lambda: shape_model(SHAPES["deep"], settings)], settings)
report.save("deep.json")
```
"""

from .costs import Cost, CostSettings, measure_costs
from .models import BenchmarkModel, BenchmarkSettings, real_model, shape_model
from .report import BenchmarkReport, Case, new_result_file
from .run import run_benchmark, run_case
from .shapes import SHAPES, Shape, build_model, random_prompt
from .table import cost_table

__all__ = [
    "SHAPES",
    "BenchmarkModel",
    "BenchmarkReport",
    "BenchmarkSettings",
    "Case",
    "Cost",
    "CostSettings",
    "Shape",
    "build_model",
    "cost_table",
    "measure_costs",
    "new_result_file",
    "random_prompt",
    "real_model",
    "run_benchmark",
    "run_case",
    "shape_model",
]
