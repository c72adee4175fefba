"""Checkpoints independent of the layout of ranks: pieces of tensors in shards, a manifest, and durable writes."""
