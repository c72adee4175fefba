"""Table `ranks`: how long many ranks on one host take to start, and how much memory they need."""
