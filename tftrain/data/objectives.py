"""Sizes and checks of data that differ between the objectives of pre-training: an object for each.

`predictions` returns max_predictions_per_seq of prepared data. `record_sizes` returns max_seq_length and
max_predictions_per_seq of a record, or raises a DataError if it is no example of the objective; `records_have` is what
messages call them. The others return problems: of flags that fit no data of the objective, and of flags of masks that
do not fit synthetic data, prepared data, or records.
"""

import math
from collections.abc import Mapping, Sequence

from tftrain import families
from tftrain.config.data import DataConfig
from tftrain.config.fields import Problem, refused
from tftrain.config.model import ModelConfig
from tftrain.data.manifest import Manifest
from tftrain.data.sizes import predictions
from tftrain.files.errors import DataError

# The token types of an example: of its first and its second text.
TOKEN_TYPES = 2
STANDARD_FEATURES = (
    *("input_ids", "input_mask", "segment_ids"),
    *("masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels"),
)
_SLOTS = "max_predictions_per_seq"


class _Masked:
    """Masked words of pairs; other records are in the standard BERT format."""

    records_have = "max_seq_length {} and max_predictions_per_seq {}"

    def predictions(self, manifest: Manifest, data: DataConfig) -> int:
        if limit := manifest.max_predictions_per_seq or data.max_predictions_per_seq:
            return limit
        # Each example of a packed row may have one more, rounded up.
        return predictions(manifest.max_seq_length, data.masked_lm_prob) + (manifest.max_sequences_per_pack or 0)

    def record_sizes(self, features: Mapping[str, Sequence], where: str) -> tuple[int, int]:
        if missing := [name for name in STANDARD_FEATURES if not features.get(name)]:
            raise DataError(
                f"{where}: the record lacks {', '.join(missing)}; expected the original BERT pre-training features, or "
                f"tf-models' names of them, for --model_family={families.listed('masked')}"
            )
        length, slots = len(features["input_ids"]), len(features["masked_lm_positions"])
        if slots > length:
            fault = f"the record has {slots} masked positions in {length} tokens; prepare the data again"
            raise DataError(f"{where}: {fault}")
        return length, slots

    def flag_problems(self, model: ModelConfig, data: DataConfig) -> list[Problem]:
        expected = f"expected at least {TOKEN_TYPES}, the token types of an example"
        lacks = model.family.token_types and model.type_vocab_size < TOKEN_TYPES
        return [refused(model, "type_vocab_size", expected)] if lacks else []

    def synthetic_problems(self, data: DataConfig, length: int, slots: int | None) -> list[Problem]:
        expected = f"expected at most {length - 2}, --max_seq_length without [CLS] and [SEP]"
        return [refused(data, _SLOTS, expected)] if (slots or 0) > length - 2 else []

    def prepared_problems(self, data: DataConfig, manifest: Manifest) -> list[Problem]:
        length, most = manifest.max_seq_length, manifest.max_sequences_per_pack or 0
        if manifest.masking == "static":
            return self._fixed(data, manifest.max_predictions_per_seq, "static masks (prepare --masking=dynamic)")
        if (data.max_predictions_per_seq or 1) > length - 3:
            expected = f"expected at most {length - 3}, --max_seq_length without [CLS] and both [SEP]"
            return [refused(data, _SLOTS, expected)]
        expected = f"expected more than {most}: a row of {manifest.folder} holds up to {most} examples"
        return [refused(data, _SLOTS, expected)] if (data.max_predictions_per_seq or math.inf) <= most else []

    def record_problems(self, data: DataConfig, length: int, slots: int | None) -> list[Problem]:
        return self._fixed(data, slots, "masks in the records")

    def _fixed(self, data: DataConfig, slots: int | None, masks: str) -> list[Problem]:
        """Returns the problems of flags of masks with data that has its masks."""
        faults = []
        if data.max_predictions_per_seq not in (None, slots):
            faults.append(refused(data, _SLOTS, f"remove this flag, or give {slots}: the data has {masks}"))
        if data.whole_word_masking:
            faults.append(refused(data, "whole_word_masking", f"expected false: the data has {masks}"))
        if data.masked_lm_prob != DataConfig.masked_lm_prob:
            faults.append(refused(data, "masked_lm_prob", f"remove this flag: the data has {masks}"))
        return faults


class _Causal:
    """Every next token; other records have max_seq_length + 1 input_ids."""

    records_have = "max_seq_length {}"

    def predictions(self, manifest: Manifest, data: DataConfig) -> int:
        return manifest.max_seq_length

    def record_sizes(self, features: Mapping[str, Sequence], where: str) -> tuple[int, int]:
        length, masked = len(features.get("input_ids", ())) - 1, families.listed("masked")
        if length < 1 or "masked_lm_positions" in features:
            other = f"masked_lm_positions, as for --model_family={masked}" if length >= 1 else "no two input_ids"
            raise DataError(
                f"{where}: the record has {other}; expected input_ids with --max_seq_length + 1 token ids, and no "
                f"masks, for --model_family={families.listed('causal')}"
            )
        return length, length

    def flag_problems(self, model: ModelConfig, data: DataConfig) -> list[Problem]:
        flags = ("masked_lm_prob", "whole_word_masking")
        given = [flag for flag in flags if getattr(data, flag) != getattr(DataConfig, flag)]
        return [self._predicts(data, flag, "every token") for flag in given]

    def synthetic_problems(self, data: DataConfig, length: int, slots: int | None) -> list[Problem]:
        every = f"every one of {length} tokens"
        return [] if data.max_predictions_per_seq in (None, length) else [self._predicts(data, _SLOTS, every)]

    def prepared_problems(self, data: DataConfig, manifest: Manifest) -> list[Problem]:
        return self.synthetic_problems(data, manifest.max_seq_length, None)

    record_problems = synthetic_problems

    def _predicts(self, data: DataConfig, flag: str, what: str) -> Problem:
        family = families.listed("masked")
        return refused(data, flag, f"remove this flag, or use --model_family={family}: a decoder predicts {what}")


ObjectiveChecks = _Masked | _Causal
OBJECTIVES: Mapping[str, ObjectiveChecks] = {"masked": _Masked(), "causal": _Causal()}
