"""Table checkpoint: what its figures are made of."""

from tftrain.bench.checkpoint import CHECKPOINT, ROWS, record


def measured(*seconds, size=2e9):
    return [{"seconds": each, "bytes": size} for each in seconds]


def row(name):
    return next(row for row in CHECKPOINT.rows if row.name == name)


def test_a_restore_is_compared_with_reading_the_same_files_from_the_same_place():
    rates = {}
    read = record(row("read/disk"), measured(4, 1, 2), rates)
    assert (read["seconds"], read["gb_per_s"], read["share_of_read"]) == (2, 1, 1)
    restore = record(row("restore/disk"), measured(2.5, 9, 2), rates)
    assert restore["share_of_read"] == 0.8
    assert record(row("restore/page_cache"), measured(1), rates)["share_of_read"] is None


def test_only_the_first_save_is_the_first():
    assert record(row("stall_of_the_first_save"), measured(5, 1, 1), {})["seconds"] == 5
    assert record(row("stall_of_a_later_save"), measured(1, 3, 2), {})["seconds"] == 2


def test_reading_is_measured_before_what_is_compared_with_it():
    order = [f"{what} {files}" for what, files in ROWS]
    for files in ("page cache", "disk"):
        assert order.index(f"read {files}") < order.index(f"restore {files}")
