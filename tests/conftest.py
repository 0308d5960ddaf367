"""Settings of the process that have to stand before torch is imported."""

from __future__ import annotations

import os

# oneDNN picks its kernels by what the processor claims; on virtual machines without working AMX the bfloat16 ones die.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# The models are tiny: a second thread within an operator costs more than it saves.
os.environ.setdefault("OMP_NUM_THREADS", "1")
