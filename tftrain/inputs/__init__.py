"""What a run reads, opened once: data, labelled files, tokenizer, initial weights."""
