"""The configuration of `tftrain.prepare`, as `tftrain.config.train` is that of a run."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

from tftrain.config.fields import Problem, field_problems, flag, not_installed, refused, superfluous
from tftrain.families import listed
from tftrain.families.bert import NORMALIZATION
from tftrain.files.addresses import is_address

# The 256 bytes and the special tokens.
SMALLEST_BPE_VOCABULARY = {"causal": 257, "masked": 261}
_TYPES = ("wordpiece", "sentencepiece", "bpe", "unigram", "pipeline")
_NORMALIZATIONS = {"wordpiece": NORMALIZATION, "sentencepiece": "nfkc"}
_OBJECTIVES = f"Examples for --model_family={listed('masked')} (masked), or {listed('causal')} (causal: joined texts)."
_MASKED = {"objective": ("masked",)}
_DEFAULT_SEQUENCES_PER_PACK = 3
_OF_RECORDS = (
    *("input_records", "eval_records", "output_dir", "overwrite", "objective", "tokenizer_type", "vocab_file"),
    *("lower_case", "strip_accents", "normalization", "num_workers", "runner", "beam_options"),
)


@dataclass(frozen=True)
class PrepareConfig:
    """What `tftrain.prepare` reads, how it cuts and masks, and where it writes."""

    input_files: tuple[str, ...] = flag((), names="path", common=True)
    """Files, folders, globs and addresses such as s3://bucket/texts; separate them by commas, or repeat the flag. UTF-8
    text, .jsonl, .csv, .tsv, .parquet, .arrow; plain or .gz, .zst, .bz2, .xz; also in .tar and .zip."""
    input_records: str | None = flag(None, names="path")
    """Glob of TFRecords to copy, instead of text: the original BERT's, or causal ones of --max_seq_length + 1
    input_ids."""
    eval_records: str | None = flag(None, "Glob of held-out TFRecords, used with --input_records.", names="path")
    text_column: str = flag("text", "Column with the text in tables, such as .jsonl or .parquet.")
    id_column: str | None = flag(None)
    """Column of tables with a document's id, which then decides, instead of its number, whether it is held out."""
    skip_bad_rows: bool = flag(False, "Leave out rows of tables without a readable text; the manifest counts them.")
    skip_unreadable: bool = flag(False, "Leave out files and folders that can't be read; the manifest counts them.")
    max_expanded_gb: float = flag(16.0, minimum=0.001, maximum=1e6)
    """Most gigabytes that a compressed Parquet or Arrow file or .zip archive may take in the temporary folder."""
    builtin_corpus: bool = flag(False, common=True)
    """Use the English documentation inside a fixed list of installed Python packages as the text."""
    builtin_corpus_mb: float = flag(0.0, "Megabytes of the built-in corpus; 0: all of it.", minimum=0)
    document_separator: str = flag("blank_line", choices=("blank_line", "file", "verbatim"), common=True)
    """What separates documents. blank_line: blank lines; each line is a paragraph. file: each file is a document; blank
    lines separate paragraphs. verbatim: each file is a document whose white space stays, such as code."""
    deduplicate: str = flag("paragraph", choices=("paragraph", "near", "none"), common=True)
    """Repeated text that is left out. paragraph: a paragraph of at least 32 bytes that the corpus had before. near:
    also a document that is nearly the same as an earlier one (MinHash). none: nothing."""
    min_tokens_used: float = flag(0.9, minimum=0, maximum=1)
    """Refuse the text if a smaller share of its tokens, without duplicates, is in examples."""
    output_dir: str | None = flag(None, "Folder for shards, vocabulary and manifest.json.", names="path", common=True)
    overwrite: bool = flag(False, "Replace an earlier data set in --output_dir.")
    objective: str = flag("masked", _OBJECTIVES, choices=("masked", "causal"), common=True)
    next_sentence: bool = flag(True, restrict=_MASKED)
    """Make examples of two texts; false: of one text, for families that learn no pairs, and --next_sentence=false."""
    tokenizer_type: str = flag("wordpiece", choices=_TYPES, common=True)
    """Tokenizer of the text. bpe: byte-level, as in GPT-2 and ModernBERT. unigram: as in XLM-RoBERTa. pipeline: any
    other tokenizer.json in --vocab_file."""
    vocab_file: str | None = flag(None, names="path", common=True)
    """Vocabulary instead of a learned one: vocab.txt; sentencepiece's .model; tokenizer.json; vocab.json with
    merges.txt beside it."""
    vocab_size: int | None = flag(None, minimum=64, maximum=1 << 20, common=True)
    """Tokens of the learned vocabulary; by default 30522."""
    lower_case: bool | None = flag(None, common=True)
    """Lower-case the text; by default true for wordpiece and sentencepiece."""
    strip_accents: str = flag("auto", choices=("auto", "true", "false"))
    """Strip the nonspacing marks of letters (é to e), in every script. auto: if the text is lower-cased and, for a new
    vocabulary, in Latin script with hardly any marks; with --vocab_file, as recorded beside it."""
    normalization: str | None = flag(None, choices=(NORMALIZATION, "nfkc"))
    """How text is normalized and divided into words. bert: as in the original BERT, the default. nfkc: with NFKC case
    folding. A sentencepiece model has nfkc; bpe leaves text as it is."""
    max_seq_length: int = flag(128, minimum=8, maximum=1 << 16, common=True)
    """Tokens of an example: of a pair with [CLS] and both [SEP], or inputs of a causal sequence."""
    short_seq_prob: float = flag(0.1, minimum=0, maximum=1, restrict=_MASKED)
    """Share of the examples that get a random, shorter length."""
    masking: str = flag("dynamic", choices=("dynamic", "static"), restrict=_MASKED)
    """When tokens are masked. dynamic: while training. static: now, in records of the standard BERT format."""
    masked_lm_prob: float = flag(0.15, "Share of tokens that static masks select.", above=0, below=1, restrict=_MASKED)
    max_predictions_per_seq: int | None = flag(None, minimum=1, restrict=_MASKED)
    """Most masked tokens of a static example; by default --max_seq_length x --masked_lm_prob."""
    whole_word_masking: bool = flag(False, "Static masks select whole words, not word pieces.", restrict=_MASKED)
    dupe_factor: int | None = flag(None, minimum=1, restrict=_MASKED)
    """Number of times that the text is used, with new pairs and static masks each time; by default 1, or 10 if
    static."""
    packing: str = flag("none", choices=("none", "greedy"), restrict=_MASKED, common=True)
    """Examples of a row. greedy: several examples share a packed row of --max_seq_length tokens and do not attend to
    each other, so hardly any position is padding. none: one example."""
    max_sequences_per_pack: int | None = flag(None, minimum=2, maximum=64, restrict=_MASKED)
    """Most examples of a packed row with --packing=greedy; by default 3."""
    eval_fraction: float = flag(0.02, "Share of the documents that is held out.", minimum=0, below=1, common=True)
    heldout_window: int = flag(13, minimum=0, maximum=1024)
    """Cut out of the held-out split each sequence of this number of tokens that training has too; 0: cut nothing."""
    shard_mb: float = flag(16.0, "Megabytes of text in a shard, approximately.", minimum=0.01, maximum=1e5)
    num_workers: int | None = flag(None, minimum=1, maximum=1024, common=True)
    """Worker processes; by default one for each core. The output does not depend on their number."""
    runner: str = flag("local", choices=("local", "beam"))
    """What does the work. local: worker processes of this machine. beam: Apache Beam pipelines, also on many machines
    that share --output_dir and the text; the output is the same."""
    beam_options: tuple[str, ...] = flag((), restrict={"runner": ("beam",)})
    """Options of Beam's pipelines, such as --runner=FlinkRunner,--flink_master=host:8081; separate them by commas, or
    repeat the flag. By default Beam's direct runner runs them on this machine."""
    seed: int = flag(1, "Seed of the split, the order, the pairs and static masks.", minimum=0, maximum=2**31 - 1)

    @property
    def split_beam_options(self) -> list[str]:
        """The options in `beam_options`, each by itself; values may have commas."""
        return [option for values in self.beam_options for option in re.split(r",(?=--)", values)]

    @property
    def resolved_normalization(self) -> str:
        """The value of `normalization`, or its default; "none" if the tokenizer has its own."""
        return self.normalization or _NORMALIZATIONS.get(self.tokenizer_type, "none")

    @property
    def resolved_lower_case(self) -> bool:
        """The value of `lower_case`, or its default."""
        return self.tokenizer_type in _NORMALIZATIONS if self.lower_case is None else self.lower_case

    @property
    def strips_accents(self) -> bool | None:
        """Whether accents are stripped; None: the text decides, or what is recorded beside `vocab_file`."""
        if self.tokenizer_type != "wordpiece":
            return False
        if self.strip_accents != "auto":
            return self.strip_accents == "true"
        if self.resolved_normalization == "nfkc" or not self.resolved_lower_case:
            return self.resolved_lower_case
        return None

    @property
    def examples_per_row(self) -> int:
        """Examples of a row at most."""
        return 1 if self.packing == "none" else self.max_sequences_per_pack or _DEFAULT_SEQUENCES_PER_PACK

    def problems(self) -> list[Problem]:
        """Returns every reason to refuse this configuration."""
        return [*field_problems(self), *self._problems()]

    def _problems(self) -> Iterator[Problem]:
        """Yields what contradicts in several flags."""
        if bool(self.input_files) + self.builtin_corpus + bool(self.input_records) != 1:
            expected = "expected either --input_files, --builtin_corpus or --input_records"
            yield refused(self, "input_files", expected)
        if self.deduplicate == "near":
            yield from not_installed("deduplicate", "near", "datasketch", "near")
        if self.document_separator == "verbatim" and (self.objective, self.tokenizer_type) != ("causal", "bpe"):
            expected = "expected blank_line or file: only --objective=causal with --tokenizer_type=bpe has white space"
            yield refused(self, "document_separator", expected)
        elif self.document_separator == "verbatim" and self.deduplicate == "paragraph":
            expected = "add --deduplicate=near or none: its paragraphs are lines, which stay although they occur twice"
            yield refused(self, "document_separator", expected)
        if not self.output_dir or is_address(self.output_dir):
            yield refused(self, "output_dir", "expected a local folder for what is prepared")
        if self.vocab_file and self.vocab_size:
            yield refused(self, "vocab_size", "remove this flag: --vocab_file is given")
        yield from self._tokenizer_problems()
        if self.runner == "beam":
            expected = "remove this flag with --runner=beam, whose options say how many workers there are"
            yield from superfluous(self, ("num_workers",), expected)
            yield from not_installed("runner", "beam", "apache_beam", "beam")
            if not all(option.startswith("--") for option in self.split_beam_options):
                yield refused(self, "beam_options", "expected options that begin with --, such as --runner=FlinkRunner")
        if self.input_records:
            others = [field.name for field in fields(self) if field.name not in _OF_RECORDS]
            yield from superfluous(self, others, "remove this flag with --input_records, which stay as they are")
            if not self.vocab_file:
                yield refused(self, "vocab_file", "expected the vocabulary that --input_records were made with")
            return
        yield from superfluous(self, ("eval_records",), "remove this flag, or add --input_records")
        if self.objective == "masked":
            yield from self._mask_problems()

    def _tokenizer_problems(self) -> Iterator[Problem]:
        kind, normalizes = self.tokenizer_type, self.tokenizer_type in _NORMALIZATIONS
        lowers = str(self.resolved_lower_case).lower()
        if kind == "sentencepiece" and self.normalization == NORMALIZATION:
            expected = "remove this flag with --tokenizer_type=sentencepiece, whose models normalize the text as nfkc"
            yield refused(self, "normalization", expected)
        if self.strip_accents != "auto" and kind != "wordpiece":
            yield refused(self, "strip_accents", f"remove this flag: --tokenizer_type={kind} strips no accents")
        elif self.resolved_normalization == "nfkc" and self.strip_accents not in ("auto", lowers):
            expected = (
                f"expected {lowers}: --normalization=nfkc strips accents if it lower-cases; or remove this flag, or "
                "use --normalization=bert"
            )
            yield refused(self, "strip_accents", expected)
        does = "leaves the text as it is" if kind == "bpe" else "has its own normalization"
        if self.normalization and not normalizes:
            yield refused(self, "normalization", f"remove this flag: --tokenizer_type={kind} {does}")
        if self.lower_case and not normalizes and (kind != "unigram" or self.vocab_file):
            yield refused(self, "lower_case", f"remove this flag with --tokenizer_type={kind}, which {does}")
        if kind == "pipeline" and not self.vocab_file:
            yield refused(self, "vocab_file", "expected a tokenizer.json for --tokenizer_type=pipeline")
        least = SMALLEST_BPE_VOCABULARY.get(self.objective, 0)
        if kind == "bpe" and 64 <= (self.vocab_size or math.inf) < least:
            expected = f"expected at least {least} with --tokenizer_type=bpe: all bytes and the special tokens"
            yield refused(self, "vocab_size", expected)

    def _mask_problems(self) -> Iterator[Problem]:
        if self.packing == "none" and self.max_sequences_per_pack:
            yield refused(self, "max_sequences_per_pack", "remove this flag, or add --packing=greedy")
        if self.packing == "greedy" and self.masking == "static":
            expected = "expected none with --masking=static: records in the standard BERT format have one example each"
            yield refused(self, "packing", expected)
        most = self.max_seq_length - 3
        if self.masking == "dynamic":
            expected = "remove this flag, or add --masking=static; tftrain.run has this flag for dynamic masks"
            yield from superfluous(self, ("masked_lm_prob", "max_predictions_per_seq", "whole_word_masking"), expected)
        elif (self.max_predictions_per_seq or 1) > most:
            expected = f"expected at most {most}, --max_seq_length without [CLS] and both [SEP]"
            yield refused(self, "max_predictions_per_seq", expected)
