"""The tokenizer that a run carries in its folder: that of its data, or that of its initial weights."""

import itertools
import logging
from pathlib import Path

from tftrain.checkpoint.folder import find
from tftrain.config.convert import parse_place
from tftrain.config.train import TrainConfig
from tftrain.files.complete_folder import complete_folder
from tftrain.files.errors import DataError, FormatError
from tftrain.finetune.tables import read_text
from tftrain.formats import registry, run_folder
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_files import Tokenizer
from tftrain.tokenizer.tokenizer_model import ChatTemplate

logger = logging.getLogger(__name__)


def written_folder(config: TrainConfig) -> Path:
    """Returns the folder in which a run keeps its tokenizer, so that its checkpoints need nothing else."""
    return Path(config.run.folder or "") / run_folder.TOKENIZER_FOLDER


def write_tokenizer(config: TrainConfig, resumed: bool) -> None:
    """Writes the tokenizer of a run into its folder; a resumed run has it there already.

    Nothing is written for records and synthetic data without a tokenizer.
    """
    folder = written_folder(config)
    if resumed and folder.is_dir():
        return
    if config.model.reads_examples:
        own_tokenizer = tokenizer_of(config)
    elif config.data.folder:
        own_tokenizer = run_folder.of_data(config.data.folder, config.data.cache)
    else:
        initial = config.run.init_checkpoint
        own_tokenizer = registry.model_of(parse_place(initial))[1] if initial else None
    if folder.is_dir():  # Of a run that was started over, perhaps on another vocabulary.
        if tokenizer_files.read(folder) == own_tokenizer:
            return
        aside = next(path for n in itertools.count(1) if not (path := folder.with_name(f"{folder.name}_{n}")).exists())
        folder.rename(aside)
        logger.info(f"{folder}: the tokenizer of an earlier run, which is another one, was moved to {aside}")
    if own_tokenizer:
        with complete_folder(folder) as partial:
            tokenizer_files.write(partial, own_tokenizer)


def tokenizer_of(config: TrainConfig) -> Tokenizer:
    """Returns the tokenizer in `--tokenizer_dir`, or else beside the initial weights, or that in the run's folder.

    Raises:
        DataError: there is none, it is damaged, or it is not for an encoder.
    """
    folder, weights = config.fine_tuning.tokenizer_dir, config.run.init_checkpoint
    try:
        if folder:
            own_tokenizer, origin = run_folder.tokenizer_of(folder), f"--tokenizer_dir={folder}"
        elif weights:
            own_tokenizer, origin = registry.model_of(parse_place(weights))[1], f"--init_checkpoint={weights}"
        elif (own_folder := written_folder(config)).is_dir():
            own_tokenizer, origin = tokenizer_files.read(own_folder), str(own_folder)
        else:
            raise DataError(
                "--tokenizer_dir is not given; expected the folder of a tokenizer, or --init_checkpoint with one in it"
            )
    except FormatError as error:
        raise DataError(str(error)) from error
    if own_tokenizer is None:
        raise DataError(f"{origin}: there is no vocab.txt; name a folder with --tokenizer_dir")
    if not (config.model.is_causal or own_tokenizer.vocabulary.is_for_encoders):
        raise DataError(f"{origin}: the vocabulary has no [CLS]; expected one of an encoder")
    if config.checkpoint.resume != "none" and find(config.run.folder or "") and written_folder(config).is_dir():
        # A run that began when tftrain put nothing before a text goes on so.
        begins = tokenizer_files.read(written_folder(config)).begins_with_bos
        own_tokenizer = own_tokenizer._replace(begins_with_bos=begins and own_tokenizer.begins_with_bos)
    path = config.fine_tuning.chat_template
    return own_tokenizer._replace(chat_template=ChatTemplate.of(read_text(path), path)) if path else own_tokenizer
