"""Optimizer: learning rate schedule, update rules, loss scale, and the state they keep."""
