"""Whole training runs as measurements: `tftrain.run` on several ranks, in processes of their own."""
