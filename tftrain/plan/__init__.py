"""Planner: memory and time of a configuration, computed in pure Python without TensorFlow."""
