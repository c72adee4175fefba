"""Models for programs that serve them: SavedModels and ONNX files that need nothing of this project."""
