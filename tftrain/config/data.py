"""The flags of the data of a run: `DataConfig`."""

from dataclasses import dataclass

from tftrain.config import mixture
from tftrain.config.fields import flag
from tftrain.files.addresses import Cache


@dataclass(frozen=True)
class DataConfig:
    """Where the examples come from and how they become batches."""

    ON_RESUME = "named"

    data_dir: str | None = flag(None, names="path", common=True)
    """Folder that tftrain.prepare wrote, with manifest.json, or its address such as s3://bucket/data."""
    mix: str | None = flag(None, names="content")
    """Mixture of prepared data, instead of --data_dir, such as wiki=0.7:data/wiki,code=0.3:data/code. Each source has a
    name, a share of the samples, and a folder or address; in fine-tuning, a file, in place of --train_file. Or a file
    with one source on each line."""
    mix_temperature: float = flag(1.0, above=0)
    """The shares of --mix are raised to the power of 1 / --mix_temperature. Above 1, they become more alike."""
    mix_by: str = flag("sample", choices=("sample", "batch"))
    """What has one source of --mix: each sample, so that batches are mixed, or, in fine-tuning, each global batch: then
    negatives of --task=embedding are of the same source."""
    train_files: str | None = flag(None, "Glob of TFRecords of the original BERT, instead of --data_dir.", names="path")
    eval_files: str | None = flag(None, "Glob of held-out TFRecords, used with --train_files.", names="path")
    synthetic_data: bool = flag(False, "Train on random token ids instead of records, for benchmarks.")
    max_seq_length: int | None = flag(None, minimum=8, common=True)
    """Tokens of an example; by default as in the data, or 128 with --synthetic_data."""
    max_predictions_per_seq: int | None = flag(None, minimum=1)
    """Most masked tokens of an example; by default as in the data, or --max_seq_length x --masked_lm_prob."""
    masked_lm_prob: float = flag(0.15, "Share of the tokens that dynamic masking selects.", above=0, below=1)
    whole_word_masking: bool = flag(False, "Dynamic masking selects whole words instead of word pieces.")
    document_mask: bool = flag(False)
    """The documents in a sequence of a decoder do not attend to each other; positions begin again with each."""
    seq_length_buckets: str = flag("none")
    """Ascending lengths below --max_seq_length, such as 128,256. A batch has examples of similar length and is cut to
    the smallest length that holds them."""
    phases: str | None = flag(None, names="content")
    """File of phases. A line has until_samples=N or until_tokens=N, the consumed samples or tokens at the end of the
    phase, then the flags of data and batch that differ, such as data_dir=data/128 global_batch_size=4096. The last
    phase has no end. Or the lines themselves, separated by semicolons. An evaluation uses the phase that runs."""
    data_readers: int = flag(2, minimum=1, maximum=256, on_resume="host")
    """Threads that read and decode records on each rank."""
    cache_dir: str | None = flag(None, names="path", on_resume="host")
    """Local folder for copies of files at addresses; by default tftrain in $XDG_CACHE_HOME or ~/.cache."""
    cache_gb: float = flag(100.0, minimum=0, on_resume="host")
    """Most GB (1e9 bytes) of prepared data in --cache_dir, and at most 80% of the free disk; the rest is not copied."""

    @property
    def cache(self) -> Cache:
        """Where copies of what is at addresses are."""
        return Cache(self.cache_dir, int(self.cache_gb * 1e9))

    @property
    def sources(self) -> list[str]:
        """The flags that are given of those that each name the data."""
        return [name for name in ("data_dir", "mix", "train_files", "synthetic_data") if getattr(self, name)]

    @property
    def folder(self) -> str | None:
        """A folder of prepared data, which has the vocabulary: data_dir, or the first one of a mixture."""
        if not self.mix or mixture.problems(self.mix, self.mix_temperature):
            return self.data_dir
        return mixture.read(self.mix)[0].path
