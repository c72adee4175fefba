"""The order of rows here beside the published one: by hand, and what does not count."""

from tftrain.bench.published import order


def record(here, published, base=(), speed=None, published_speed=None):
    return {
        "peak_gb": here,
        "published_gb": published,
        "base_peak_gb": list(base),
        "samples_per_sec": speed,
        "published_samples_per_sec_per_gpu": published_speed,
    }


def test_pairs_in_the_published_order_are_counted():
    # 1.0 < 1.2 < 1.5 here; of the three pairs, the first and the second row are the other way round as published.
    (line,) = order.lines([record(1.0, 40.0), record(1.2, 30.0), record(1.5, 50.0)])
    assert line.startswith("memory: 2 of 3 pairs")


def test_pairs_that_are_too_close_do_not_count():
    near_as_published = [record(1.0, 40.0), record(1.5, 41.0)]
    near_here = [record(1.0, 40.0, base=(1.0, 1.1)), record(1.05, 50.0, base=(1.0, 1.02))]
    assert order.lines(near_as_published) == order.lines(near_here) == []
    (line,) = order.lines([*near_here, record(1.2, 60.0)])
    assert line.startswith("memory: 2 of 2 pairs")
    assert "10.0% apart here" in line


def test_rows_without_figures_do_not_count():
    rows = [record(1.0, 40.0), record(None, 50.0), record(1.5, None), record(2.0, "OOM"), {}]
    assert order.lines(rows) == []
    assert order.lines([]) == []


def test_speed_is_counted_by_itself():
    rows = [record(1.0, 40.0, (), 10.0, 7.0), record(1.0, 40.0, (), 20.0, 8.0), record(1.0, 40.0, (), 30.0, 6.0)]
    (line,) = order.lines(rows)
    assert line.startswith("speed: 1 of 3 pairs")


def test_the_speed_of_a_stage_is_divided_among_the_stages():
    # The second row is twice as fast here, as a quarter of its pipeline.
    rows = [record(1.0, 40.0, (), 10.0, 7.0) | {"stages": 1}, record(1.0, 40.0, (), 20.0, 6.0) | {"stages": 4}]
    (line,) = order.lines(rows)
    assert line.startswith("speed: 1 of 1 pairs")
