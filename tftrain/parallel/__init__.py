"""The ranks of a run: their places, and what they say to each other."""
