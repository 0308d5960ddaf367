"""Every decoding method side by side on one model: tuned alike, evaluated on the same images, with its cost.

`rudder compare --out FOLDER` runs it; the README has the command of its own comparison.
"""

from .options import CompareOptions, ComparisonData, find_images
from .run import compare
from .table import Comparison, Row, markdown

__all__ = ["CompareOptions", "Comparison", "ComparisonData", "Row", "compare", "find_images", "markdown"]
