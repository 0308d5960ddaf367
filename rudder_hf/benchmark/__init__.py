"""What RUDDER costs: throughput, forward passes, operators and memory beside the stock model's.

Run it with `rudder benchmark`, or from Python:

```python
from rudder_hf.benchmark import SHAPES, BenchmarkSettings, run_benchmark, shape_subject

settings = BenchmarkSettings(rounds=15)
report = run_benchmark([lambda: shape_subject(SHAPES["deep"], settings)], settings)
report.save("deep.json")
```
"""

from .report import BenchmarkReport, CaseResult, VariantResult, new_result_file
from .runner import BenchmarkSettings, model_subject, run_benchmark, run_case, shape_subject
from .shapes import SHAPES, Shape, build_model, random_prompt
from .table import report_tables
from .variants import Subject

__all__ = [
    "BenchmarkReport",
    "BenchmarkSettings",
    "CaseResult",
    "SHAPES",
    "Shape",
    "Subject",
    "VariantResult",
    "build_model",
    "model_subject",
    "new_result_file",
    "random_prompt",
    "report_tables",
    "run_benchmark",
    "run_case",
    "shape_subject",
]
