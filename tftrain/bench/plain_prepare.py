"""What a plain script of `datasets` and `tokenizers` does: learns a tokenizer, tokenizes text, joins it to sequences.

Its arguments are the tokenizer, its size, the tokens of a sequence, the processes, the file and the folder to be
written. The last line that it prints is the number of tokens in the sequences.
"""

import itertools
import os
import sys

KINDS = {".txt": "text", ".zst": "json", ".parquet": "parquet"}


def main(tokenizer: str, vocab_size: str, length: str, workers: str, file: str, folder: str) -> None:
    """Does the work."""
    os.environ["RAYON_NUM_THREADS"] = workers  # Of `tokenizers`, which learns with threads.
    import datasets
    import tokenizers

    datasets.disable_progress_bars()
    kind, size, count = KINDS[os.path.splitext(file)[1]], int(length), int(workers)
    options = {"sample_by": "paragraph"} if kind == "text" else {}  # Blank lines part documents.
    text = datasets.load_dataset(kind, data_files=file, split="train", **options)
    learned = tokenizers.ByteLevelBPETokenizer() if tokenizer == "bpe" else tokenizers.BertWordPieceTokenizer()
    end = "<|endoftext|>" if tokenizer == "bpe" else "[SEP]"
    batches = (batch["text"] for batch in text.iter(1000))
    learned.train_from_iterator(batches, vocab_size=int(vocab_size), special_tokens=["[UNK]", end], show_progress=False)
    last = [learned.token_to_id(end)]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # The processes share the work.

    def tokenize(batch):
        return {"ids": [each.ids + last for each in learned.encode_batch(batch["text"], add_special_tokens=False)]}

    def join(batch):
        ids = list(itertools.chain.from_iterable(batch["ids"]))
        return {"input_ids": [ids[begin : begin + size] for begin in range(0, len(ids) - size + 1, size)]}

    settings = {"batched": True, "num_proc": count if count > 1 else None}
    ids = text.map(tokenize, remove_columns=text.column_names, **settings)
    sequences = ids.map(join, remove_columns=["ids"], **settings)
    sequences.save_to_disk(folder)
    print(len(sequences) * size)


if __name__ == "__main__":
    main(*sys.argv[1:])
