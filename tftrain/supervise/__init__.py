"""Watches a run from beside it: time limits, signals, failed peers, elastic membership."""
