"""The published tables: rows of the reference files, measured here at a scale that fits, planned, as published."""
