"""Weights in the files of other libraries, and in checkpoints of this project: names, shapes and tokenizers."""
