"""What watches a run from beside it: limits of time, signals, failed peers, elastic membership."""
