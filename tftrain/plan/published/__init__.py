"""Published measurements: their rows and formats, constants fitted to them, and plans compared with them."""
