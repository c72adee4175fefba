"""From records to batches: order, masking, the input pipeline, and checks before a start."""
