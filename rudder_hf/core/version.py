"""The version of the package, and the oldest transformers that its tests pass on (see constraints-oldest.txt)."""

__version__ = "0.3.0"
OLDEST_TRANSFORMERS = "5.16"
