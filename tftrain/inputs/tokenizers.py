"""The tokenizer of a run on labelled files, and the copy that a run keeps in its folder."""

import functools
import itertools
import logging
from dataclasses import dataclass
from pathlib import Path

from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.folder import find
from tftrain.files.complete_folder import complete_folder
from tftrain.files.errors import DataError, FormatError
from tftrain.finetune.tables import read_text
from tftrain.formats import run_folder
from tftrain.inputs.initial_weights import InitialWeights
from tftrain.tokenizer import tokenizer_files
from tftrain.tokenizer.tokenizer_model import ChatTemplate, Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenizerChoice:
    """Finds the tokenizer of labelled files: in `folder`, or beside the initial weights, or in the run's folder."""

    folder: str | None  # the value of --tokenizer_dir
    template: str | None  # the value of --chat_template
    initial: InitialWeights | None  # the weights that the run begins with; None if they are random
    output_dir: str | None  # the folder of the run
    resumes: bool  # whether the run continues, if its folder has a checkpoint
    is_for_encoders: bool  # whether the model is an encoder, whose vocabulary has special tokens

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; raises a DataError if there is none, it is damaged, or it is not for an encoder."""
        kept = kept_folder(self.output_dir)
        try:
            if self.folder:
                tokenizer, origin = run_folder.tokenizer_of(self.folder), f"--tokenizer_dir={self.folder}"
            elif self.initial:
                tokenizer, origin = self.initial.tokenizer, f"--init_checkpoint={self.initial.value}"
            elif kept.is_dir():
                tokenizer, origin = tokenizer_files.read(kept), str(kept)
            else:
                expected = "expected the folder of a tokenizer, or --init_checkpoint with one in it"
                raise DataError(f"--tokenizer_dir is not given; {expected}")
        except (CheckpointError, FormatError) as error:
            raise DataError(str(error)) from error
        if tokenizer is None:
            raise DataError(f"{origin}: there is no vocab.txt; name a folder with --tokenizer_dir")
        if self.is_for_encoders and (lacking := tokenizer.vocabulary.roles.lacking):
            raise DataError(f"{origin}: the tokenizer has no token for {' and '.join(lacking)}; expected an encoder's")
        if self.resumes and find(self.output_dir or "") and kept.is_dir():
            # A run that began when tftrain put nothing before a text goes on so.
            begins = tokenizer_files.read(kept).begins_with_bos
            tokenizer = tokenizer._replace(begins_with_bos=begins and tokenizer.begins_with_bos)
        if not self.template:
            return tokenizer
        return tokenizer._replace(chat_template=ChatTemplate.of(read_text(self.template), self.template))


def kept_folder(output_dir: str | None) -> Path:
    """Returns the folder in which a run keeps its tokenizer, so that its checkpoints need nothing else."""
    return Path(output_dir or "") / run_folder.TOKENIZER_FOLDER


def keep(tokenizer: Tokenizer | None, output_dir: str) -> None:
    """Writes the tokenizer of a run into its folder; nothing for records and synthetic data without a tokenizer."""
    folder = kept_folder(output_dir)
    if folder.is_dir():  # It may be that of a run that was started over, perhaps on another vocabulary.
        if tokenizer_files.read(folder) == tokenizer:
            return
        aside = next(path for n in itertools.count(1) if not (path := folder.with_name(f"{folder.name}_{n}")).exists())
        folder.rename(aside)
        logger.info(f"{folder}: the tokenizer of an earlier run, which is another one, was moved to {aside}")
    if tokenizer:
        with complete_folder(folder) as partial:
            tokenizer_files.write(partial, tokenizer)
