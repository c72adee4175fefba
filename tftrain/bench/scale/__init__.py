"""What a run of thousands of ranks would do to files, network and launcher, counted without running it."""
