"""Checkpoints independent of the layout of ranks: slices of tensors in shards, a manifest, and durable writes."""
