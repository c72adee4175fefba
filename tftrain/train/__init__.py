"""Training: the update, the loop around it, checkpoints and what is reported."""
