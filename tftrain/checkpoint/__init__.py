"""Checkpoints of no particular layout: pieces of tensors in shards, a manifest, and how they get onto the disk."""
