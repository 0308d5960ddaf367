"""Figures of the report, with what each shows and what it does not support; drawn from the numbers alone."""
