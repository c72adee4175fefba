"""Supervises a run: time limits, signals, failed peers, elastic membership."""
