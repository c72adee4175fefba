"""The model: an encoder of readable blocks with the two pre-training heads, and the loss over them."""
