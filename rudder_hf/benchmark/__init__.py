"""What decoding methods cost beside vanilla: throughput, forwards, operators and, on CUDA, memory.

Run it with `rudder benchmark`, or from Python:

```python
from rudder_hf.benchmark import BenchmarkSettings, benchmark_model, run_benchmark

settings = BenchmarkSettings(rounds=15)
report = run_benchmark(benchmark_model("llava-hf/llava-1.5-7b-hf", settings), settings)
report.save("costs.json")
```
"""

from .report import (
    BenchmarkModel,
    BenchmarkReport,
    BenchmarkSettings,
    benchmark_model,
    new_result_file,
    run_benchmark,
)

__all__ = [
    "BenchmarkModel",
    "BenchmarkReport",
    "BenchmarkSettings",
    "benchmark_model",
    "new_result_file",
    "run_benchmark",
]
