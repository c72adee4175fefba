"""What the data says about a configuration, found out before TensorFlow starts."""

from tftrain.config import DataConfig, TrainConfig
from tftrain.data.errors import DataError
from tftrain.data.example import decode
from tftrain.data.manifest import Manifest, read_manifest
from tftrain.data.records import RecordSet, match_files
from tftrain.data_sizes import SYNTHETIC_SEQ_LENGTH, Sizes, predictions, synthetic
from tftrain.fields import Problem, field_problems

# An example has two segments, whose ids are token types.
SEGMENTS = 2
STANDARD_FEATURES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "masked_lm_weights",
    "next_sentence_labels",
)


def sizes(config: TrainConfig) -> Sizes:
    """Returns the sizes of a run, with what its flags leave open taken from the data.

    Raises:
        DataError: the data cannot be read, or the vocabulary's size is neither stated nor known.
    """
    data, vocab_size = config.data, config.model.vocab_size
    if data.synthetic_data:
        return synthetic(data, vocab_size)
    if data.data_dir:
        manifest = read_manifest(data.data_dir)
        return Sizes(vocab_size or manifest.vocab_size, manifest.max_seq_length, manifest_predictions(manifest, data))
    if vocab_size is None:
        raise DataError("--vocab_size is not given; expected the vocabulary's size, as --train_files do not state it")
    length, slots = standard_sizes(match_files(data.train_files, "train_files"))
    return Sizes(vocab_size, length, slots)


def manifest_predictions(manifest: Manifest, data: DataConfig) -> int:
    """Returns the masked tokens of an example at most, from the flags or from prepared data."""
    return (
        manifest.max_predictions_per_seq
        or data.max_predictions_per_seq
        or predictions(manifest.max_seq_length, data.masked_lm_prob)
    )


def standard_sizes(paths: list[str]) -> tuple[int, int]:
    """Returns max_seq_length and max_predictions_per_seq of records in the standard format, from the first of them."""
    records = RecordSet(paths[:1])
    where = records.place(0)
    features = decode(records.read(0), where)
    missing = [name for name in STANDARD_FEATURES if not features.get(name)]
    if missing:
        raise DataError(
            f"{where}: the record lacks {', '.join(missing)}; expected the original BERT pre-training features"
        )
    length, slots = len(features["input_ids"]), len(features["masked_lm_positions"])
    if slots > length:
        raise DataError(f"{where}: the record has {slots} masked positions in {length} tokens; prepare the data again")
    return length, slots


def problems(config: TrainConfig) -> list[Problem]:
    """Returns every reason why this configuration does not fit its data; a record's content is not among them.

    Args:
        config: any. What `TrainConfig.problems` finds is not said again, and nothing is derived from a flag that is
            outside its own bounds.
    """
    data, found = config.data, []
    if config.model.type_vocab_size < SEGMENTS:
        expected = f"expected at least {SEGMENTS}, the segments of an example"
        found.append(Problem("type_vocab_size", config.model.type_vocab_size, expected))
    if sum(map(bool, (data.data_dir, data.train_files, data.synthetic_data))) != 1:
        return found
    if data.synthetic_data:
        return found + _synthetic_problems(config)
    if data.train_files:
        return found + _standard_problems(config)
    try:
        manifest = read_manifest(data.data_dir)
    except DataError as error:
        return [*found, Problem("data_dir", data.data_dir, str(error))]
    return found + _prepared_problems(config, manifest)


def _synthetic_problems(config: TrainConfig) -> list[Problem]:
    data, found = config.data, []
    if data.max_seq_length is None and config.model.max_position_embeddings < SYNTHETIC_SEQ_LENGTH:
        found.append(
            Problem(
                "max_position_embeddings",
                config.model.max_position_embeddings,
                f"expected at least max_seq_length={SYNTHETIC_SEQ_LENGTH}, which is the default of synthetic data",
            )
        )
    if {problem.flag for problem in field_problems(data)} & {"max_seq_length", "masked_lm_prob"}:
        return found
    _, length, slots = synthetic(data, config.model.vocab_size)
    if slots > length - 2:
        found.append(
            Problem(
                "max_predictions_per_seq",
                data.max_predictions_per_seq,
                f"expected at most {length - 2}, max_seq_length without [CLS] and [SEP]",
            )
        )
    return found


def _prepared_problems(config: TrainConfig, manifest: Manifest) -> list[Problem]:
    data, found = config.data, []
    if (config.model.vocab_size or manifest.vocab_size) < manifest.vocab_size:
        found.append(
            Problem(
                "vocab_size",
                config.model.vocab_size,
                f"expected nothing, or at least the {manifest.vocab_size} of the vocabulary in {data.data_dir}",
            )
        )
    found += _length_problems(config, manifest.max_seq_length, data.data_dir)
    if manifest.examples("train") == 0 and config.run.mode == "train":
        found.append(Problem("data_dir", data.data_dir, "its train split is empty; prepare it from more text"))
    if manifest.examples("eval") == 0:
        why = "its eval split is empty; prepare it from more text, or with a larger --eval_fraction"
        found += _held_out_problems(config, Problem("data_dir", data.data_dir, why))
    if manifest.masking == "static":
        found += _static_problems(config, manifest.max_predictions_per_seq, "static masks (prepare --masking=dynamic)")
    elif (data.max_predictions_per_seq or 1) > manifest.max_seq_length - 3:
        found.append(
            Problem(
                "max_predictions_per_seq",
                data.max_predictions_per_seq,
                f"expected at most {manifest.max_seq_length - 3}, max_seq_length without [CLS] and both [SEP]",
            )
        )
    return found


def _standard_problems(config: TrainConfig) -> list[Problem]:
    data, found = config.data, []
    if config.model.vocab_size is None:
        found.append(Problem("vocab_size", None, "expected the vocabulary's size, as --train_files do not state it"))
    if data.eval_files is None:
        expected = "expected a glob of held-out TFRecords, which mode=evaluate reads"
        found += _held_out_problems(config, Problem("eval_files", None, expected))
    seen = {}
    for flag in ("train_files", "eval_files"):
        pattern = getattr(data, flag)
        if pattern is None:
            continue
        try:
            length, slots = standard_sizes(match_files(pattern, flag))
        except DataError as error:
            found.append(Problem(flag, pattern, str(error).removeprefix(f"--{flag}={pattern}: ")))
            continue
        seen[flag] = f"max_seq_length {length} and max_predictions_per_seq {slots}"
        found += _length_problems(config, length, pattern) + _static_problems(config, slots, "masks in the records")
    if len(set(seen.values())) > 1:
        expected = f"expected the {seen['train_files']} of train_files, not {seen['eval_files']}"
        found.append(Problem("eval_files", data.eval_files, expected))
    return list(dict.fromkeys(found))


def _held_out_problems(config: TrainConfig, reason: Problem) -> list[Problem]:
    """Returns what cannot be done without a held-out split, for the lack of which `reason` is the problem."""
    if config.run.mode == "evaluate":
        return [reason]
    if config.run.eval_every > 0:
        missing = "eval_files" if reason.flag == "eval_files" else f"a held-out split in {reason.value}"
        return [Problem("eval_every", config.run.eval_every, f"expected 0, or {missing}: nothing is held out")]
    return []


def _length_problems(config: TrainConfig, length: int, where: str) -> list[Problem]:
    found = []
    if config.data.max_seq_length not in (None, length):
        found.append(
            Problem("max_seq_length", config.data.max_seq_length, f"expected nothing, or the {length} of {where}")
        )
    if config.model.max_position_embeddings < length:
        found.append(
            Problem(
                "max_position_embeddings",
                config.model.max_position_embeddings,
                f"expected at least the max_seq_length={length} of {where}",
            )
        )
    return found


def _static_problems(config: TrainConfig, slots: int, why: str) -> list[Problem]:
    data, found = config.data, []
    if data.max_predictions_per_seq not in (None, slots):
        found.append(
            Problem(
                "max_predictions_per_seq",
                data.max_predictions_per_seq,
                f"expected nothing, or {slots}: the data has {why}",
            )
        )
    if data.whole_word_masking:
        found.append(Problem("whole_word_masking", True, f"expected false: the data has {why}"))
    if data.masked_lm_prob != DataConfig.masked_lm_prob:
        found.append(Problem("masked_lm_prob", data.masked_lm_prob, f"expected nothing: the data has {why}"))
    return found
