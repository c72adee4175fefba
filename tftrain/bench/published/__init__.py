"""The published tables: rows of the reference files, published, planned, and measured on this machine at a scale."""
