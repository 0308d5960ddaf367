"""Rerun the whole comparison of decoding methods on the embedded model.

    python benchmarks/compare.py --out benchmarks/embedded/compare

It is `rudder compare` and takes its options; the README has those of its table.
Interrupted, the same command goes on where it was; results are never overwritten.
"""

from __future__ import annotations

import sys

from rudder_hf.cli.main import app

if __name__ == "__main__":
    sys.argv[0] = "rudder"
    app(["compare", *sys.argv[1:]], prog_name="rudder compare")
