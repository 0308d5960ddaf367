"""Every decoding method side by side on one model: tuned alike, evaluated on the same pictures, with its cost.

`rudder compare --out FOLDER` runs it; `python benchmarks/compare.py` is the run that the README reports.
"""

from ..methods import BUDGET
from .join import joined, read_parts
from .options import CompareOptions, ComparisonData, find_pictures
from .record import Comparison, Row
from .run import compare
from .table import markdown
from .variants import Entry

__all__ = [
    "BUDGET",
    "CompareOptions",
    "Comparison",
    "ComparisonData",
    "Entry",
    "Row",
    "compare",
    "find_pictures",
    "joined",
    "markdown",
    "read_parts",
]
