"""The version of the package, in a file that costs nothing to import."""

__version__ = "0.2.0"
