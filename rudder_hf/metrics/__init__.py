"""Metrics as pure functions of saved answers: CHAIR, POPE, MME, fluency, statistics."""
