"""From text to records."""
