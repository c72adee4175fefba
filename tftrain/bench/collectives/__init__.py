"""Table `collectives`: how long the collectives of a step wait for other ranks, and how long they take."""
