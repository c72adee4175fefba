"""The ranks of a run: their topology, start-up and collectives."""
