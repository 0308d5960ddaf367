"""Hallucination measured: tasks, a run that survives interruptions, results from saved answers, and their tables.

`run.Run` is a folder of answers, `result.Result` their scores; `score` compares folders, `tables` writes the report.
The scores themselves are pure functions in `rudder_hf.metrics`.
"""
