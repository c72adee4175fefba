"""The tokenizer of a fine-tuning run: the one that its weights were trained with."""

from pathlib import Path

from tftrain.config import TrainConfig
from tftrain.convert_config import parse_place
from tftrain.data.errors import DataError
from tftrain.formats import own, registry, tokenizer
from tftrain.formats.errors import FormatError
from tftrain.formats.tokenizer import Tokenizer


def written_folder(config: TrainConfig) -> Path:
    """Returns the folder in which a run keeps its tokenizer, so that its checkpoints need nothing else."""
    return Path(config.run.output_dir or "") / own.TOKENIZER_FOLDER


def write_tokenizer(config: TrainConfig) -> None:
    """Writes the tokenizer of a run into its folder, if there is none yet."""
    folder = written_folder(config)
    if not folder.is_dir():
        found = tokenizer_of(config)
        partial = folder.with_name(f".{folder.name}_partial")
        partial.mkdir(parents=True, exist_ok=True)
        tokenizer.write(partial, found)
        partial.rename(folder)


def tokenizer_of(config: TrainConfig) -> Tokenizer:
    """Returns the tokenizer in `--tokenizer_dir`, or else beside the initial weights, or that in the run's folder.

    Raises:
        DataError: there is none, it is damaged, or it is not for an encoder.
    """
    folder, weights = config.fine_tuning.tokenizer_dir, config.run.init_checkpoint
    try:
        if folder:
            found, origin = own.tokenizer_of(folder), f"--tokenizer_dir={folder}"
        elif weights:
            found, origin = registry.model_of(parse_place(weights))[1], f"--init_checkpoint={weights}"
        elif (own_folder := written_folder(config)).is_dir():
            found, origin = tokenizer.read(own_folder), str(own_folder)
        else:
            raise DataError(
                "--tokenizer_dir is not given; expected the folder of a tokenizer, or --init_checkpoint with one in it"
            )
    except FormatError as error:
        raise DataError(str(error)) from error
    if found is None:
        raise DataError(f"{origin}: there is no vocab.txt; name a folder with --tokenizer_dir")
    if found.vocabulary.tokenizer_type == "bpe":
        raise DataError(f"{origin}: a vocabulary of bpe has no [CLS]; expected one of wordpiece or sentencepiece")
    return found
