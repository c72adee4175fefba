"""From text to batches: records, their order, masking and the input pipeline."""
