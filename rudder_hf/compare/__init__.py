"""Decoding methods side by side on one model: tuned alike, on the same images, with what each costs."""

from .run import CompareOptions, ComparisonData, compare, find_images

__all__ = ["CompareOptions", "ComparisonData", "compare", "find_images"]
