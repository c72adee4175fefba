"""Everything that is fuzzed, by name. A new target is a subclass of `harness.Target` and a line here."""

from tests.fuzz import checkpoint_targets, data_targets, flag_targets, stranger_targets

TARGETS = {
    target.name: target
    for target in (
        *(data_targets.Records, data_targets.PreparedRecords, data_targets.Sequences, data_targets.Index),
        *(data_targets.DataManifest, data_targets.VocabularyFile, data_targets.SentencepieceModel),
        *(data_targets.BytePairs, flag_targets.Flagfile, checkpoint_targets.CheckpointManifest),
        *(checkpoint_targets.Safetensors, stranger_targets.TorchFile, stranger_targets.Archive),
        *(stranger_targets.ParquetFile, stranger_targets.ArrowFile, stranger_targets.ChatTemplate),
    )
}
