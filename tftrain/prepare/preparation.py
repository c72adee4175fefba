"""The stages of a preparation: documents into chunks, a vocabulary, chunks into shards, and the manifest at the end.

A preparation writes its files into the folder `.unfinished` inside the output folder. When all files are complete, it
moves them into the output folder and writes the manifest last. If it fails or is interrupted, the output folder does
not change.
"""

import logging
import os
import shutil
from collections.abc import Iterable

import msgspec
import numpy as np

from tftrain.config.prepare import PrepareConfig
from tftrain.data import manifest
from tftrain.data.manifest import Manifest, Shard
from tftrain.files.addresses import absolute
from tftrain.files.errors import DataError
from tftrain.host import hardware
from tftrain.prepare import accounting, accounting_report, corpus_chunks, output_folder, records, tokenizer_choice
from tftrain.prepare.accounting import Accounting
from tftrain.prepare.beam_workers import BeamWorkers
from tftrain.prepare.input_files import list_files
from tftrain.prepare.objective import PrepareObjective
from tftrain.prepare.objectives import objective_of
from tftrain.prepare.shards import hash_windows, write_shard
from tftrain.prepare.spool import Spool
from tftrain.prepare.workers import Workers
from tftrain.tokenizer.roles import of_tokens
from tftrain.tokenizer.tokenizer_model import MODEL_FILES, Tokenizer
from tftrain.tokenizer.vocabulary import write_vocabulary

logger = logging.getLogger(__name__)

VOCAB_FILE = "vocab.txt"


def prepare(config: PrepareConfig) -> Manifest:
    """Prepares a data set for a valid configuration, and returns the manifest that was written.

    Raises:
        DataError: the text, the vocabulary or the output folder cannot be used.
    """
    output_folder.check(config)
    objective = objective_of(config)
    tokenizer = tokenizer_choice.read(config)
    inputs, unreadable = [], 0
    if config.input_files:
        inputs, unreadable = list_files(config.input_files, config.skip_unreadable)
    if config.runner == "beam":
        inputs = [absolute(path) for path in inputs]
    # Workers of other machines have other working folders.
    work = os.path.abspath(os.path.join(config.output_dir, output_folder.UNFINISHED))
    existed = os.path.isdir(config.output_dir)
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    try:
        if config.runner == "local":
            workers = Workers(config.num_workers or hardware.cores())
        else:
            workers = BeamWorkers(config.split_beam_options, work)
        with workers:
            if config.input_records:
                config, shards_of, counted = records.adopt(config, work, tokenizer, workers)
                new_manifest = _manifest(objective_of(config), work, 0, tokenizer, counted, shards_of)
            else:
                spool, documents, bad_rows = corpus_chunks.read_corpus(objective, work, inputs, workers)
                tokenizer = tokenizer or tokenizer_choice.learn(objective, spool, workers)
                new_manifest = _write(objective, work, spool, documents, tokenizer, workers)
        if config.skip_unreadable:
            new_manifest = msgspec.structs.replace(new_manifest, unreadable_inputs=unreadable)
        if config.skip_bad_rows:
            logger.info(accounting.row("bad rows left out", bad_rows))
            new_manifest = msgspec.structs.replace(new_manifest, bad_rows=bad_rows)
        output_folder.publish(work, new_manifest)
        return new_manifest
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if not existed and os.path.isdir(config.output_dir) and not os.listdir(config.output_dir):
            os.rmdir(config.output_dir)


def _write(
    objective: PrepareObjective, work: str, spool: Spool, documents: int, tokenizer: Tokenizer, workers: Workers
) -> Manifest:
    """Writes the shards and the vocabulary. Returns the manifest without writing it."""
    config = objective.config
    tasks = [
        (spool, chunk, config, tokenizer, os.path.join(work, f"{chunk.split}-{chunk.number}"))
        for chunk in spool.chunks()
    ]
    results = _write_shards(config, work, tasks, workers)
    for warning in objective.warnings([result.documents for result in results]):
        logger.warning(warning)
    results_of = {"train": results[: spool.train_chunks], "eval": results[spool.train_chunks :]}
    tokens = _account(objective, results_of)
    if tokens.documents_read != documents:
        raise DataError(
            f"--output_dir={config.output_dir}: the workers have written {documents} documents into it, and found "
            f"{tokens.documents_read} of them there; check its file system"
        )
    splits: dict[str, list[Shard]] = {"train": [], "eval": []}
    for split, shards_of_split in splits.items():
        nonempty = [(number, result) for number, result in enumerate(results_of[split]) if result.examples]
        for shard_number, (number, result) in enumerate(nonempty):
            name = f"{split}-{shard_number:05d}-of-{len(nonempty):05d}.tfrecord"
            for suffix in ("", ".index"):
                os.rename(os.path.join(work, f"{split}-{number}{suffix}"), os.path.join(work, name + suffix))
            size, packed = os.path.getsize(os.path.join(work, name)), config.examples_per_row > 1
            shards_of_split.append(Shard(name, result.records, size, result.examples if packed else None))
    return _manifest(objective, work, documents, tokenizer, tokens, splits)


def _manifest(
    objective: PrepareObjective,
    work: str,
    documents: int,
    tokenizer: Tokenizer,
    tokens: Accounting,
    splits: dict[str, list[Shard]],
) -> Manifest:
    """Writes the vocabulary. Returns the manifest without writing it."""
    config = objective.config
    write_vocabulary(os.path.join(work, VOCAB_FILE), tokenizer.vocabulary)
    roles = tokenizer.vocabulary.roles
    model_file = None if tokenizer.model is None else MODEL_FILES[config.tokenizer_type]
    if model_file:
        with open(os.path.join(work, model_file), "wb") as file:
            file.write(tokenizer.model)
    return Manifest(
        folder=config.output_dir,
        objective=config.objective,
        masking=config.masking if config.objective == "masked" else None,
        tokenizer_type=config.tokenizer_type,
        vocab_file=VOCAB_FILE,
        vocab_size=len(tokenizer.vocabulary),
        vocab_sha256=manifest.file_sha256(os.path.join(work, VOCAB_FILE)),
        tokenizer_file=model_file,
        lower_case=config.resolved_lower_case,
        strip_accents=tokenizer.strip_accents,
        normalization=config.resolved_normalization,
        max_seq_length=config.max_seq_length,
        max_predictions_per_seq=objective.predictions(),
        documents=documents,
        tokens_read=tokens.tokens_read,
        tokens_in_examples=tokens.tokens_in_examples,
        tokens_dropped=dict(tokens.tokens_dropped),
        unk_share=tokens.unk_share,
        max_sequences_per_pack=config.examples_per_row if config.examples_per_row > 1 else None,
        next_sentence=None if config.next_sentence else False,
        roles=None if roles == of_tokens(tokenizer.vocabulary.tokens) else roles._asdict(),
        seed=config.seed,
        splits=splits,
    )


def _write_shards(config: PrepareConfig, work: str, tasks: list, workers: Workers) -> list[Accounting]:
    """Writes all shards, the training ones first, and returns their accountings in the order of `tasks`."""
    if not (config.heldout_window and config.eval_fraction):
        return [accounting for accounting, _ in workers.run("write records", write_shard, tasks)]
    training, held_out = ([task for task in tasks if task[1].split == split] for split in ("train", "eval"))
    hashes = workers.run("hash held-out text", hash_windows, [task[:-1] for task in held_out])
    windows = _save_union(work, "held-out", hashes)
    results = list(workers.run("write records", write_shard, [(*task, windows) for task in training]))
    windows = _save_union(work, "shared", (found for _, found in results))
    results += workers.run("write held-out records", write_shard, [(*task, windows) for task in held_out])
    return [accounting for accounting, _ in results]


def _save_union(work: str, name: str, hashes: Iterable[np.ndarray]) -> str:
    """Writes the different ones of some hashes to a file, ascending, and returns its path."""
    path = os.path.join(work, f"{name}-windows.npy")
    np.save(path, np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes])))
    return path


def _account(objective: PrepareObjective, results_of: dict[str, list[Accounting]]) -> Accounting:
    """Logs and returns the accounting of the text, given the shards'; raises DataError if a split has no example."""
    whole, config = accounting.total(results_of["train"] + results_of["eval"]), objective.config
    for line in accounting_report.table(whole, objective):
        logger.info(line)
    accounting_report.check(whole, objective)
    if line := accounting_report.padding_advice(whole.lengths, config):
        logger.info(line)
    for split, name in (("train", "training"), ("eval", "held-out")):
        if not any(result.examples for result in results_of[split]) and (split == "train" or config.eval_fraction):
            cut = whole.tokens_dropped.get(accounting.IN_TRAINING) if split == "eval" else 0
            kept = f"; {cut:,} of its tokens are cut out, as training has them: --heldout_window=0 keeps them"
            near = whole.tokens_dropped.get(accounting.NEAR_DUPLICATE, 0)
            other = f"; {near:,} tokens of the text are near duplicates: --deduplicate=paragraph keeps them"
            raise DataError(
                f"{corpus_chunks.source(config)}: the {name} split has no example; expected "
                f"{objective.smallest_text()}{kept if cut else ''}{other if near else ''}"
            )
    return whole
