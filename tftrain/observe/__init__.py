"""What a run reports: log lines, metrics.jsonl, TensorBoard, plots, spikes, planned beside measured."""
