"""Table `prepare`: both programs read the same text, and write its tokens as sequences."""

import pytest

from tftrain.bench import prepare as table
from tftrain.bench.config import BenchConfig
from tftrain.bench.prepare import PREPARE


@pytest.fixture
def small(monkeypatch):
    """Some of the packages, and few tokens."""
    names = ("absl-py", "click", "fsspec")
    distributions = [table.importlib.metadata.distribution(name) for name in names]
    monkeypatch.setattr(table.importlib.metadata, "distributions", lambda: distributions)
    monkeypatch.setattr(table, "VOCAB_SIZE", 600)
    monkeypatch.setattr(table, "LENGTH", 32)


def test_both_programs_make_about_as_many_tokens_of_each_format(small, tmp_path):
    config = BenchConfig(table="prepare", output_dir=str(tmp_path))
    rows = [row for form in ("txt", "parquet") for row in PREPARE.matching(f"bpe/1/{form}/*")]
    outcomes = list(PREPARE.outcomes(rows, config, lambda line: None))
    assert [outcome.row for outcome in outcomes] == [row.name for row in rows]
    assert not any(outcome.error for outcome in outcomes)
    records = [outcome.records[0] for outcome in outcomes]
    ours, plain = ({record["million_tokens"] for record in records if record["program"] == p} for p in table.PROGRAMS)
    assert len(plain) == 1  # The formats have the same text.
    (tokens,) = plain
    # A part of the text is in no sequence: the ends of the shards, and what is in both splits.
    assert all(0.7 < count / tokens < 1.05 for count in ours)
    assert all(0.02 < record["pss_gb"] < 8 for record in records)
    megabytes = table.corpus(tmp_path / "prepare_corpus")["txt"].stat().st_size / 1e6
    assert [record["mb_per_s"] * record["seconds"] for record in records] == pytest.approx([megabytes] * len(records))
