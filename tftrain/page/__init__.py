"""Pages of HTML: their look, and bars with the numbers that they show."""
