"""Compares predictions.jsonl of a run of classes with what transformers predicts, given the converted model.

    python -m tftrain.convert --from=tftrain:RUN --to=hf:RUN/hf
    build/torch/bin/python tests/formats/compare_with_transformers.py RUN

`make_transformers_fixtures.py` says how to make build/torch. Prints how many predictions are equal, and the largest
difference of a probability.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="the --output_dir of a run")
    parser.add_argument("--max_seq_length", type=int, default=64)
    args = parser.parse_args()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(args.run / "hf").eval()
    tokenizer = transformers.BertTokenizer.from_pretrained(args.run / "hf")
    rows = [json.loads(line) for line in (args.run / "predictions.jsonl").read_text().splitlines()]
    equal, largest = 0, 0.0
    for row in rows:
        inputs = tokenizer(*row["texts"], truncation=True, max_length=args.max_seq_length, return_tensors="pt")
        with torch.no_grad():
            found = model(**inputs).logits.softmax(-1)[0]
        equal += model.config.id2label[int(found.argmax())] == row["prediction"]
        ours = torch.tensor([row["probabilities"][name] for name in model.config.label2id])
        largest = max(largest, float((found - ours).abs().max()))
    print(f"{equal} of {len(rows)} predictions are equal; largest difference of a probability {largest:.1e}")
    return 0 if equal == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
