"""Hallucination measured: CHAIR, POPE and MME as pure functions of saved answers, and one runner that writes them.

`rudder evaluate` is the command line. Metrics (`chair`, `pope`, `mme`, `fluency`, `statistics`) need no model;
`session` runs a task, scores it again, and compares two runs.
"""
