"""Labelled examples: files that people keep them in, their tokens, and the scores of predictions."""
