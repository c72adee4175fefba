"""Checkpoints of a run: when they are written and restored, and what may change on resume."""
