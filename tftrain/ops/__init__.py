"""Python wrappers of custom_ops: one file per op, with its gradient and its reference implementation in plain TF."""
