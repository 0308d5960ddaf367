"""Hallucination measured: tasks, a run that survives interruptions, scores of saved answers, and their tables.

`rudder evaluate` is the command line. `run.evaluate` runs a task; `folder` scores saved answers again and compares
two runs. The scores themselves are pure functions in `rudder_hf.metrics`.
"""
