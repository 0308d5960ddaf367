"""Decoding methods side by side on one model: tuned alike, on the same images, with what each costs."""

from .options import CompareOptions, ComparisonData, find_images
from .run import compare

__all__ = ["CompareOptions", "ComparisonData", "compare", "find_images"]
