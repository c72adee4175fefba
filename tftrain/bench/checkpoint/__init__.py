"""Table `checkpoint`: how long a save stops training, and how fast a state is restored."""
