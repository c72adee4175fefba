"""The published tables: published, planned and measured figures of each row; runs are scaled to this machine."""
