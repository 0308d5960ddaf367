"""What decoding methods cost beside vanilla: throughput, forwards, operators and memory.

Run it with `rudder benchmark`, or from Python:

```python
from rudder_hf.benchmark import SHAPES, BenchmarkSettings, benchmark_model, run_benchmark

settings = BenchmarkSettings(rounds=15)
report = run_benchmark([lambda: benchmark_model(SHAPES["deep"], settings)], settings)
report.save("deep.json")
```
"""

from .models import SHAPES, BenchmarkModel, BenchmarkSettings, benchmark_model
from .report import BenchmarkReport, new_result_file, run_benchmark

__all__ = [
    "SHAPES",
    "BenchmarkModel",
    "BenchmarkReport",
    "BenchmarkSettings",
    "benchmark_model",
    "new_result_file",
    "run_benchmark",
]
