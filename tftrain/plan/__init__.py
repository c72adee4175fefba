"""Planner: what a configuration needs and costs, in pure Python with no TensorFlow."""
