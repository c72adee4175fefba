"""What a run reads in one of its phases."""

import abc

from tftrain.config.fields import Problem
from tftrain.data.sizes import Sizes
from tftrain.tokenizer.tokenizer_model import Tokenizer


class PhaseData(abc.ABC):
    """Opened data: text to pre-train on (`tftrain.data.opened`), or labelled files (`tftrain.inputs.labelled`)."""

    @property
    @abc.abstractmethod
    def sizes(self) -> Sizes:
        """The sizes of a run; the data supplies those that no flag sets.

        Raises:
            DataError: the data can't be read, or neither a flag nor the data states the size of the vocabulary.
        """

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that has made the data; None if it is not known."""
        return None

    @property
    def has_held_out(self) -> bool:
        """Whether there is a held-out split."""
        return True

    @property
    def is_packed(self) -> bool:
        """Whether rows are known to hold several examples each."""
        return False

    @abc.abstractmethod
    def problems(self, mode: str, eval_every: int) -> list[Problem]:
        """Returns all conflicts with the flags, except with the content of records.

        Args:
            mode, eval_every: what the run does with the data, as the flags of the same names.
        """
