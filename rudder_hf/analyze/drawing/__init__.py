"""Figures, drawn from the numbers alone: each function takes a section of `numbers.json` and returns a figure."""
