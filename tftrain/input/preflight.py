"""Checks a configuration against its data before TensorFlow starts: problems, sizes, and the identity of the data."""

import hashlib
import math
import os

from tftrain.config import families, length_choice, mixture, phases
from tftrain.config.data_sizes import SYNTHETIC_SEQ_LENGTH, Sizes, packed_predictions, predictions, synthetic
from tftrain.config.fields import Problem, field_problems
from tftrain.config.train import DataConfig, TrainConfig
from tftrain.input.errors import DataError
from tftrain.input.example import decode
from tftrain.input.manifest import NAME, Manifest, file_sha256
from tftrain.input.mixture import read_prepared
from tftrain.input.phase_data import differences
from tftrain.input.records import RecordSet, match_files

# The token types of an example: of its first and its second text.
TOKEN_TYPES = 2
STANDARD_FEATURES = (
    *("input_ids", "input_mask", "segment_ids"),
    *("masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels"),
)
_NO_VOCAB_SIZE = "expected the vocabulary's size, as --train_files do not state it"


def sizes(config: TrainConfig) -> Sizes:
    """Returns the sizes of a run. The data supplies the sizes that no flag sets.

    Raises:
        DataError: the data cannot be read, or neither a flag nor the data states the vocabulary size.
    """
    data, vocab_size, objective = config.data, config.model.vocab_size, config.model.objective
    if data.synthetic_data:
        return synthetic(data, vocab_size, objective)
    if data.data_dir or data.mix:
        manifest = read_prepared(data)
        if manifest.objective != objective:
            raise DataError(f"{manifest.folder}: {other_objective(objective, manifest.objective)}")
        return Sizes(vocab_size or manifest.vocab_size, manifest.max_seq_length, manifest_predictions(manifest, data))
    if vocab_size is None:
        raise DataError(f"--vocab_size is not given; {_NO_VOCAB_SIZE}")
    length, slots = record_sizes(match_files(data.train_files, "train_files"), objective)
    return Sizes(vocab_size, length, slots)


def identity(data: DataConfig) -> dict[str, str]:
    """Returns the properties, by name, of the data that must be equal on all ranks and after a resume.

    A prepared data set is identified by its vocabulary and its manifest, which lists the shards and their sizes. Other
    records are identified by the names and sizes of their files, in order. Synthetic data has no properties.

    Raises:
        DataError: the data cannot be read.
    """
    if data.data_dir or data.mix:
        manifest = read_prepared(data)
        identity = {"the vocabulary": f"{manifest.vocab_size} tokens with SHA-256 {manifest.vocab_sha256[:16]}"}
        if not data.mix:
            return identity | {f"{NAME} of the data": f"SHA-256 {file_sha256(manifest.path(NAME))[:16]}"}
        return identity | {
            f"the source {source.name}": f"{source.share:.6f}, SHA-256 {file_sha256(own.path(NAME))[:16]}"
            for source, own in manifest.sources
        }
    properties = {}
    for flag in ("train_files", "eval_files"):
        if pattern := getattr(data, flag):
            paths = match_files(pattern, flag)
            names_and_sizes = "\n".join(f"{os.path.basename(path)} {os.path.getsize(path)}" for path in paths)
            digest = hashlib.sha256(names_and_sizes.encode()).hexdigest()
            properties[f"what --{flag} names"] = f"{len(paths)} files whose names and sizes have SHA-256 {digest[:16]}"
    return properties


def other_objective(wanted: str, prepared: str) -> str:
    """Returns what is wrong with data of an objective that the model does not train on, and what to do."""
    return (
        f"the data was prepared with --objective={prepared}, but --model_family={families.listed(wanted)} trains on "
        f"--objective={wanted}; prepare the text with that, or use --model_family={families.listed(prepared)}"
    )


def manifest_predictions(manifest: Manifest, data: DataConfig) -> int:
    """Returns max_predictions_per_seq of prepared data: from the manifest, else the flag, else masked_lm_prob.

    If the objective is causal, every token is predicted.
    """
    length, most = manifest.max_seq_length, manifest.max_sequences_per_pack
    if manifest.objective == "causal":
        return length
    if limit := manifest.max_predictions_per_seq or data.max_predictions_per_seq:
        return limit
    return packed_predictions(length, data.masked_lm_prob, most) if most else predictions(length, data.masked_lm_prob)


def record_sizes(paths: list[str], objective: str) -> tuple[int, int]:
    """Reads max_seq_length and max_predictions_per_seq from the first record of files that were not prepared here.

    Args:
        objective: "masked": records in the standard BERT format; "causal": records of max_seq_length + 1 input_ids.

    Raises:
        DataError: the file cannot be read, or the record is no example of the objective.
    """
    records = RecordSet(paths[:1])
    where = records.place(0)
    features = decode(records.read(0), where)
    masked_family = families.listed("masked")
    if objective == "causal":
        length = len(features.get("input_ids", ())) - 1
        if length < 1 or "masked_lm_positions" in features:
            other = f"masked_lm_positions, as for --model_family={masked_family}" if length >= 1 else "no two input_ids"
            raise DataError(
                f"{where}: the record has {other}; expected input_ids with max_seq_length + 1 token ids, and no masks, "
                f"for --model_family={families.listed('causal')}"
            )
        return length, length
    if missing := [name for name in STANDARD_FEATURES if not features.get(name)]:
        raise DataError(
            f"{where}: the record lacks {', '.join(missing)}; expected the original BERT pre-training features, or "
            f"tf-models' names of them, for --model_family={masked_family}"
        )
    length, slots = len(features["input_ids"]), len(features["masked_lm_positions"])
    if slots > length:
        raise DataError(f"{where}: the record has {slots} masked positions in {length} tokens; prepare the data again")
    return length, slots


def problems(config: TrainConfig) -> list[Problem]:
    """Returns all conflicts between a configuration and its data, except conflicts with the content of records.

    Args:
        config: any configuration, valid or not. Problems that `TrainConfig.problems` reports are not repeated, and no
            check depends on a flag that is out of its bounds.
    """
    return phases.problems(config, _of_phase) or differences(config)


def _of_phase(config: TrainConfig) -> list[Problem]:
    data, faults = config.data, []
    if config.model.objective == "causal":
        faults += _mask_problems(data)
    elif config.model.type_vocab_size < TOKEN_TYPES:
        expected = f"expected at least {TOKEN_TYPES}, the token types of an example"
        faults.append(_problem(config.model, "type_vocab_size", expected))
    if len(data.sources) != 1 or mixture.problems(data):
        return faults
    if data.synthetic_data:
        return faults + _synthetic_problems(config)
    if data.train_files:
        return faults + _standard_problems(config)
    try:
        manifest = read_prepared(data)
    except DataError as error:
        return [*faults, _problem(data, _flag(data), str(error))]
    if manifest.objective != config.model.objective:
        return [*faults, _problem(data, _flag(data), other_objective(config.model.objective, manifest.objective))]
    if manifest.next_sentence is False and config.model.next_sentence:
        expected = "expected false: the data was prepared with --next_sentence=false, so its examples have one text"
        faults.append(Problem("next_sentence", True, expected))
    return faults + _prepared_problems(config, manifest)


def _flag(data: DataConfig) -> str:
    """Returns the flag of prepared data."""
    return "mix" if data.mix else "data_dir"


def _problem(section, flag: str, expected: str) -> Problem:
    return Problem(flag, getattr(section, flag), expected)


def _mask_problems(data: DataConfig) -> list[Problem]:
    """Returns the flags of masks that are given although the model predicts every token."""
    expected = f"remove this flag, or use --model_family={families.listed('masked')}: a decoder predicts every token"
    flags = ("masked_lm_prob", "whole_word_masking")
    return [_problem(data, flag, expected) for flag in flags if getattr(data, flag) != getattr(DataConfig, flag)]


def _synthetic_problems(config: TrainConfig) -> list[Problem]:
    data, model, faults = config.data, config.model, []
    if data.max_seq_length is None and model.longest_sequence < SYNTHETIC_SEQ_LENGTH:
        expected = f"expected at least --max_seq_length={SYNTHETIC_SEQ_LENGTH}, which is the default of synthetic data"
        faults.append(_problem(model, "max_position_embeddings", expected))
    if {problem.flag for problem in field_problems(data)} & {"max_seq_length", "masked_lm_prob"}:
        return faults
    _, length, slots = synthetic(data, model.vocab_size, model.objective)
    if model.objective == "causal":
        return faults + _prediction_problems(data, length)
    if slots > length - 2:
        expected = f"expected at most {length - 2}, --max_seq_length without [CLS] and [SEP]"
        faults.append(_problem(data, "max_predictions_per_seq", expected))
    return faults


def _prepared_problems(config: TrainConfig, manifest: Manifest) -> list[Problem]:
    data, faults, folder = config.data, [], manifest.folder
    length, most = manifest.max_seq_length, manifest.max_sequences_per_pack or 0
    if (config.model.vocab_size or manifest.vocab_size) < manifest.vocab_size:
        expected = f"remove this flag, or give at least the {manifest.vocab_size} of the vocabulary in {folder}"
        faults.append(_problem(config.model, "vocab_size", expected))
    faults += _length_problems(config, length, folder)
    faults += length_choice.problems(data.seq_length_buckets, length, 1)
    if data.seq_length_buckets != length_choice.NONE and most:
        expected = f"expected none: the rows of {folder} are packed, so they are full"
        faults.append(_problem(data, "seq_length_buckets", expected))
    if config.model.attn_impl == "cudnn" and most:
        expected = f"expected flash or softmax: the rows of {folder} are packed, and cuDNN would mix their examples"
        faults.append(_problem(config.model, "attn_impl", expected))
    if manifest.examples("train") == 0 and config.run.mode == "train":
        faults.append(_problem(data, _flag(data), "its train split is empty; prepare it from more text"))
    if manifest.examples("eval") == 0:
        reason = "its eval split is empty; prepare it from more text, or with a larger --eval_fraction"
        faults += _held_out_problems(config, _problem(data, _flag(data), reason))
    if manifest.objective == "causal":
        return faults + _prediction_problems(data, length)
    if manifest.masking == "static":
        masks = "static masks (prepare --masking=dynamic)"
        return faults + _static_problems(data, manifest.max_predictions_per_seq, masks)
    if (data.max_predictions_per_seq or 1) > length - 3:
        expected = f"expected at most {length - 3}, --max_seq_length without [CLS] and both [SEP]"
        faults.append(_problem(data, "max_predictions_per_seq", expected))
    elif (data.max_predictions_per_seq or math.inf) <= most:
        expected = f"expected more than {most}: a row of {folder} holds up to {most} examples"
        faults.append(_problem(data, "max_predictions_per_seq", expected))
    return faults


def _standard_problems(config: TrainConfig) -> list[Problem]:
    data, faults = config.data, []
    if config.model.vocab_size is None:
        faults.append(Problem("vocab_size", None, _NO_VOCAB_SIZE))
    if data.eval_files is None:
        expected = "expected a glob of held-out TFRecords, which --mode=evaluate reads"
        faults += _held_out_problems(config, Problem("eval_files", None, expected))
    sizes_by_flag = {}
    for flag in ("train_files", "eval_files"):
        pattern = getattr(data, flag)
        if pattern is None:
            continue
        try:
            length, slots = record_sizes(match_files(pattern, flag), config.model.objective)
        except DataError as error:
            faults.append(_problem(data, flag, str(error).removeprefix(f"--{flag}={pattern}: ")))
            continue
        sizes_by_flag[flag] = f"max_seq_length {length} and max_predictions_per_seq {slots}"
        faults += _length_problems(config, length, pattern)
        if flag == "train_files":
            faults += length_choice.problems(data.seq_length_buckets, length, 1)
        if config.model.objective == "causal":
            sizes_by_flag[flag] = f"max_seq_length {length}"
            faults += _prediction_problems(data, length)
        else:
            faults += _static_problems(data, slots, "masks in the records")
    if len(set(sizes_by_flag.values())) > 1:
        expected = f"expected the {sizes_by_flag['train_files']} of --train_files, not {sizes_by_flag['eval_files']}"
        faults.append(_problem(data, "eval_files", expected))
    return list(dict.fromkeys(faults))


def _held_out_problems(config: TrainConfig, reason: Problem) -> list[Problem]:
    """Returns the problems of a run without held-out examples. `reason` is the problem if the mode is evaluate."""
    if config.run.mode == "evaluate":
        return [reason]
    if config.evaluation.eval_every > 0:
        missing = "--eval_files" if reason.flag == "eval_files" else f"a held-out split in {reason.value}"
        return [_problem(config.evaluation, "eval_every", f"expected 0, or {missing}: nothing is held out")]
    return []


def _length_problems(config: TrainConfig, length: int, origin: str) -> list[Problem]:
    faults = []
    if config.data.max_seq_length not in (None, length):
        faults.append(_problem(config.data, "max_seq_length", f"remove this flag, or give the {length} of {origin}"))
    if config.model.longest_sequence < length:
        expected = f"expected at least the max_seq_length={length} of {origin}"
        faults.append(_problem(config.model, "max_position_embeddings", expected))
    return faults


def _prediction_problems(data: DataConfig, length: int) -> list[Problem]:
    """Returns whether max_predictions_per_seq fits a model that predicts every token of `length`."""
    if data.max_predictions_per_seq in (None, length):
        return []
    family = families.listed("masked")
    expected = f"remove this flag, or use --model_family={family}: a decoder predicts every one of {length} tokens"
    return [_problem(data, "max_predictions_per_seq", expected)]


def _static_problems(data: DataConfig, slots: int, masks: str) -> list[Problem]:
    faults = []
    if data.max_predictions_per_seq not in (None, slots):
        expected = f"remove this flag, or give {slots}: the data has {masks}"
        faults.append(_problem(data, "max_predictions_per_seq", expected))
    if data.whole_word_masking:
        faults.append(_problem(data, "whole_word_masking", f"expected false: the data has {masks}"))
    if data.masked_lm_prob != DataConfig.masked_lm_prob:
        faults.append(_problem(data, "masked_lm_prob", f"remove this flag: the data has {masks}"))
    return faults
