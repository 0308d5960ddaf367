"""What decoding methods cost beside vanilla: throughput, forwards, operators and, on CUDA, memory.

Run it with `rudder benchmark`, or from Python:

```python
from rudder_hf.benchmark import CostSettings, run_benchmark
from rudder_hf.runtime.models import load_model

report = run_benchmark(load_model("llava-hf/llava-1.5-7b-hf"), CostSettings(rounds=15))
report.save("costs.json")
```
"""

from .costs import CostSettings as CostSettings
from .report import BenchmarkReport as BenchmarkReport
from .report import run_benchmark as run_benchmark
