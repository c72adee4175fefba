"""Checks a configuration against its data before TensorFlow starts: problems, sizes, and the identity of the data."""

import hashlib
import os

from tftrain import families
from tftrain.config import length_choice, mixture, phases
from tftrain.config.data import DataConfig
from tftrain.config.data_sizes import SYNTHETIC_SEQ_LENGTH, Sizes, synthetic
from tftrain.config.fields import Problem, field_problems
from tftrain.config.train import TrainConfig
from tftrain.data.example import decode
from tftrain.data.manifest import NAME, Manifest, file_sha256
from tftrain.data.mixture import difference, read_prepared
from tftrain.data.objectives import OBJECTIVES, problem
from tftrain.data.records import RecordSet, match_files
from tftrain.files.errors import DataError

_ONE_VOCABULARY = ("objective", "vocab_sha256", "normalization", "lower_case", "strip_accents")
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
        check_objective(manifest, objective)
        slots = OBJECTIVES[objective].predictions(manifest, data)
        return Sizes(vocab_size or manifest.vocab_size, manifest.max_seq_length, slots)
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


def check_objective(manifest: Manifest, objective: str) -> None:
    """Raises a DataError if a model that trains on an objective can't train on prepared data."""
    if manifest.objective != objective:
        raise DataError(f"{manifest.folder}: {_other_objective(objective, manifest.objective)}")


def _other_objective(wanted: str, prepared: str) -> str:
    return (
        f"the data was prepared with --objective={prepared}, but --model_family={families.listed(wanted)} trains on "
        f"--objective={wanted}; prepare the text with that, or use --model_family={families.listed(prepared)}"
    )


def record_sizes(paths: list[str], objective: str) -> tuple[int, int]:
    """Reads max_seq_length and max_predictions_per_seq from the first record of files that were not prepared here.

    Args:
        objective: "masked": records in the standard BERT format; "causal": records of max_seq_length + 1 input_ids.

    Raises:
        DataError: the file cannot be read, or the record is no example of the objective.
    """
    records = RecordSet(paths[:1])
    where = records.place(0)
    return OBJECTIVES[objective].record_sizes(decode(records.read(0), where), where)


def problems(config: TrainConfig) -> list[Problem]:
    """Returns all conflicts between a configuration and its data, except conflicts with the content of records.

    Args:
        config: any configuration, valid or not. Problems that `TrainConfig.problems` reports are not repeated, and no
            check depends on a flag that is out of its bounds.
    """
    return phases.problems(config, _of_phase) or _differences(config)


def _of_phase(config: TrainConfig) -> list[Problem]:
    data, objective = config.data, config.model.objective
    faults = OBJECTIVES[objective].flag_problems(config.model, data)
    if len(data.sources) != 1 or mixture.problems(data):
        return faults
    if data.synthetic_data:
        return faults + _synthetic_problems(config)
    if data.train_files:
        return faults + _standard_problems(config)
    try:
        manifest = read_prepared(data)
    except DataError as error:
        return [*faults, problem(data, _flag(data), str(error))]
    if manifest.objective != objective:
        return [*faults, problem(data, _flag(data), _other_objective(objective, manifest.objective))]
    if manifest.next_sentence is False and config.model.next_sentence:
        expected = "expected false: the data was prepared with --next_sentence=false, so its examples have one text"
        faults.append(Problem("next_sentence", True, expected))
    return faults + _prepared_problems(config, manifest)


def _flag(data: DataConfig) -> str:
    """Returns the flag of prepared data."""
    return "mix" if data.mix else "data_dir"


def _synthetic_problems(config: TrainConfig) -> list[Problem]:
    data, model, faults = config.data, config.model, []
    if data.max_seq_length is None and model.longest_sequence < SYNTHETIC_SEQ_LENGTH:
        expected = f"expected at least --max_seq_length={SYNTHETIC_SEQ_LENGTH}, which is the default of synthetic data"
        faults.append(problem(model, "max_position_embeddings", expected))
    if {each.flag for each in field_problems(data)} & {"max_seq_length", "masked_lm_prob"}:
        return faults
    _, length, slots = synthetic(data, model.vocab_size, model.objective)
    return faults + OBJECTIVES[model.objective].synthetic_problems(data, length, slots)


def _prepared_problems(config: TrainConfig, manifest: Manifest) -> list[Problem]:
    data, faults, folder = config.data, [], manifest.folder
    length, most = manifest.max_seq_length, manifest.max_sequences_per_pack or 0
    if (config.model.vocab_size or manifest.vocab_size) < manifest.vocab_size:
        expected = f"remove this flag, or give at least the {manifest.vocab_size} of the vocabulary in {folder}"
        faults.append(problem(config.model, "vocab_size", expected))
    faults += _length_problems(config, length, folder)
    faults += length_choice.problems(data.seq_length_buckets, length, 1)
    if data.seq_length_buckets != length_choice.NONE and most:
        expected = f"expected none: the rows of {folder} are packed, so they are full"
        faults.append(problem(data, "seq_length_buckets", expected))
    if config.model.attn_impl == "cudnn" and most:
        expected = f"expected flash or softmax: the rows of {folder} are packed, and cuDNN would mix their examples"
        faults.append(problem(config.model, "attn_impl", expected))
    if manifest.examples("train") == 0 and config.run.mode == "train":
        faults.append(problem(data, _flag(data), "its train split is empty; prepare it from more text"))
    if manifest.examples("eval") == 0:
        reason = "its eval split is empty; prepare it from more text, or with a larger --eval_fraction"
        faults += _held_out_problems(config, problem(data, _flag(data), reason))
    return faults + OBJECTIVES[manifest.objective].prepared_problems(data, manifest)


def _standard_problems(config: TrainConfig) -> list[Problem]:
    data, objective, faults = config.data, config.model.objective, []
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
            length, slots = record_sizes(match_files(pattern, flag), objective)
        except DataError as error:
            faults.append(problem(data, flag, str(error).removeprefix(f"--{flag}={pattern}: ")))
            continue
        sizes_by_flag[flag] = OBJECTIVES[objective].records_have.format(length, slots)
        faults += _length_problems(config, length, pattern)
        if flag == "train_files":
            faults += length_choice.problems(data.seq_length_buckets, length, 1)
        faults += OBJECTIVES[objective].record_problems(data, length, slots)
    if len(set(sizes_by_flag.values())) > 1:
        expected = f"expected the {sizes_by_flag['train_files']} of --train_files, not {sizes_by_flag['eval_files']}"
        faults.append(problem(data, "eval_files", expected))
    return list(dict.fromkeys(faults))


def _held_out_problems(config: TrainConfig, reason: Problem) -> list[Problem]:
    """Returns the problems of a run without held-out examples. `reason` is the problem if the mode is evaluate."""
    if config.run.mode == "evaluate":
        return [reason]
    if config.evaluation.eval_every > 0:
        missing = "--eval_files" if reason.flag == "eval_files" else f"a held-out split in {reason.value}"
        return [problem(config.evaluation, "eval_every", f"expected 0, or {missing}: nothing is held out")]
    return []


def _length_problems(config: TrainConfig, length: int, origin: str) -> list[Problem]:
    faults = []
    if config.data.max_seq_length not in (None, length):
        faults.append(problem(config.data, "max_seq_length", f"remove this flag, or give the {length} of {origin}"))
    if config.model.longest_sequence < length:
        expected = f"expected at least the max_seq_length={length} of {origin}"
        faults.append(problem(config.model, "max_position_embeddings", expected))
    return faults


def _differences(config: TrainConfig) -> list[Problem]:
    """Returns why the prepared data of the phases, each of which can be read, has not one vocabulary."""
    data = [(f"phase {number}: {each.data.folder} has ", each.data) for number, each in enumerate(config.phases, 1)]
    manifests = [(words, read_prepared(each)) for words, each in data if each.folder and len(data) > 1]
    faults = [(words, difference(manifests[0][1], each, _ONE_VOCABULARY)) for words, each in manifests]
    return [Problem("phases", config.data.phases, words + fault) for words, fault in faults if fault]
