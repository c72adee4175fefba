"""A model family described once, as data: what the model, the planner, the formats and the FLOPs are made from."""
