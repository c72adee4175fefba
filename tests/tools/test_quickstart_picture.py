"""The picture of a run is drawn from its metrics.jsonl."""

import json
import sys

from tools import quickstart_picture


def test_the_picture_shows_loss_memory_and_speed_of_a_run(tmp_path, monkeypatch):
    kinds = (*quickstart_picture.KINDS, "peak")
    rows = [{"step": step, "mlm_loss": 8.0 - step, "real_tokens_per_sec": 100.0} for step in (1, 2)]
    rows += [{"step": 2, "eval_mlm_loss": 6.5, "eval_unigram_nats": 7.0}]
    rows += [{"step": 2, **{f"{prefix}_{kind}_bytes": 1e9 for kind in kinds}} for prefix in ("memory", "planned")]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "metrics.jsonl"), f"--output={tmp_path / 'picture.png'}"])
    quickstart_picture.main()
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
