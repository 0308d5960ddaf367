"""Decoding methods side by side on one model: tuned alike, on the same images, with what each costs."""

from .run import CompareOptions as CompareOptions
from .run import ComparisonData as ComparisonData
from .run import compare as compare
from .run import find_comparison_data as find_comparison_data
