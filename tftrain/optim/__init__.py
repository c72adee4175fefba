"""Optimizer: learning rate schedule, update rules, loss scale, and their state."""
