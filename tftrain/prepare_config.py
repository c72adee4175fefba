"""The configuration of `tftrain.prepare`, as `tftrain.config` is that of a run."""

from dataclasses import dataclass

from tftrain.fields import Problem, field_problems, flag


@dataclass(frozen=True)
class PrepareConfig:
    """What `tftrain.prepare` reads, how it cuts and masks, and where it writes."""

    input_files: tuple[str, ...] = flag(
        (), "UTF-8 text files, plain or .gz: files, folders and globs; with commas, or the flag several times."
    )
    builtin_corpus: bool = flag(
        False, "Use the English documentation inside a fixed list of installed Python packages."
    )
    builtin_corpus_mb: float = flag(0.0, "Megabytes of the built-in corpus; 0: all of it.", minimum=0)
    document_separator: str = flag(
        "blank_line",
        "Blank lines part documents, whose lines are paragraphs; or a file is a document, and blank "
        "lines part its paragraphs.",
        choices=("blank_line", "file"),
    )
    deduplicate: str = flag(
        "paragraph",
        "Keep a paragraph of at least 32 bytes only once in the corpus; or keep all text.",
        choices=("paragraph", "none"),
    )
    min_tokens_used: float = flag(
        0.9,
        "Refuse the text if a smaller share of its tokens, without duplicates, is in examples.",
        minimum=0,
        maximum=1,
    )
    output_dir: str | None = flag(None, "Folder for shards, vocabulary and manifest.json.")
    overwrite: bool = flag(False, "Replace an earlier preparation in output_dir.")
    tokenizer_type: str = flag("wordpiece", "Tokenizer of the text.", choices=("wordpiece", "sentencepiece"))
    vocab_file: str | None = flag(None, "Use this vocabulary (vocab.txt, or a sentencepiece .model) and learn none.")
    vocab_size: int | None = flag(
        None, "Tokens of the learned vocabulary; by default 30522.", minimum=64, maximum=1 << 20
    )
    lower_case: bool = flag(True, "Lower-case the text and strip its accents.")
    normalization: str | None = flag(
        None,
        "What words are: bert as the original BERT and its vocabularies have it, nfkc with NFKC case folding; by "
        "default bert. A sentencepiece model has nfkc.",
        choices=("bert", "nfkc"),
    )
    max_seq_length: int = flag(128, "Tokens of an example, [CLS] and both [SEP] included.", minimum=8, maximum=1 << 16)
    short_seq_prob: float = flag(0.1, "Share of the examples that get a random, shorter length.", minimum=0, maximum=1)
    masking: str = flag(
        "dynamic",
        "Mask while training, or write masked records in the standard BERT format.",
        choices=("dynamic", "static"),
    )
    masked_lm_prob: float = flag(0.15, "Share of the tokens that static masking selects.", above=0, below=1)
    max_predictions_per_seq: int | None = flag(
        None, "Masked tokens of a static example at most; by default max_seq_length x masked_lm_prob.", minimum=1
    )
    whole_word_masking: bool = flag(False, "Static masking selects words, not pieces of words.")
    dupe_factor: int | None = flag(
        None,
        "Times that the text is used, each with new pairs and, if static, masks; by default 10 if static, else 1.",
        minimum=1,
    )
    eval_fraction: float = flag(0.02, "Share of the documents that is held out for evaluation.", minimum=0, below=1)
    shard_mb: float = flag(16.0, "Megabytes of text that make one shard, about.", minimum=0.01, maximum=1e5)
    num_workers: int | None = flag(
        None, "Processes; by default one a core. The output is the same for any.", minimum=1, maximum=1024
    )
    seed: int = flag(
        1, "Seed of the split, the mixture of documents, the pairs and static masks.", minimum=0, maximum=2**31 - 1
    )

    @property
    def resolved_normalization(self) -> str:
        """The value of `normalization`, or its default."""
        return self.normalization or ("bert" if self.tokenizer_type == "wordpiece" else "nfkc")

    def problems(self) -> list[Problem]:
        """Returns every reason to refuse this configuration."""
        found = field_problems(self)
        if bool(self.input_files) == self.builtin_corpus:
            found.append(Problem("input_files", self.input_files, "expected either input_files or builtin_corpus"))
        if not self.output_dir:
            found.append(Problem("output_dir", self.output_dir, "expected a folder for what is prepared"))
        if self.vocab_file and self.vocab_size:
            found.append(Problem("vocab_size", self.vocab_size, "expected nothing, as vocab_file is given"))
        if self.tokenizer_type == "sentencepiece" and self.normalization == "bert":
            expected = "expected nfkc or nothing with tokenizer_type=sentencepiece, whose models normalize the text"
            found.append(Problem("normalization", self.normalization, expected))
        if self.masking == "dynamic":
            for name in ("masked_lm_prob", "max_predictions_per_seq", "whole_word_masking"):
                if getattr(self, name) != getattr(PrepareConfig, name):
                    expected = "expected only with masking=static; dynamic masks follow the flag of training"
                    found.append(Problem(name, getattr(self, name), expected))
        elif (self.max_predictions_per_seq or 1) > self.max_seq_length - 3:
            found.append(
                Problem(
                    "max_predictions_per_seq",
                    self.max_predictions_per_seq,
                    f"expected at most {self.max_seq_length - 3}, max_seq_length without [CLS] and both [SEP]",
                )
            )
        return found
