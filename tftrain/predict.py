"""Predicts masked tokens, the next tokens, or what a model was fine-tuned for.

Example, after the example of tftrain.run:
    python -m tftrain.predict --output_dir=runs/try "The [MASK] of the optimizer"
"""

import sys
from collections.abc import Sequence

from tftrain.cli.program import Program
from tftrain.config.predict import PredictConfig
from tftrain.host import log
from tftrain.host.text import printable


def main(argv: Sequence[str]) -> int:
    """Predicts what the command line says; returns the exit code."""
    texts: list[str] = []
    return program(texts).main(lambda config: predict(config, texts), argv, texts)


def program(texts: Sequence[str]) -> Program:
    """Returns the frame of the program, which checks its flags when it has its texts."""
    output = "standard output"
    return Program(
        "predict", PredictConfig, lambda _: output, problems=lambda c: c.problems(len(texts)), stream="stderr"
    )


def predict(config: PredictConfig, texts: Sequence[str]) -> None:
    """Prints the predictions for the texts, or for the lines of a file; raises what `predictions` raises.

    If there is only one text and a terminal, the tokens that a decoder appends are printed one by one.
    """
    from tqdm import tqdm

    with log.loading():
        from tftrain.inference.predictions import predictions

    settings = config.predict
    if len(texts) == 1 and settings.max_new_tokens and settings.format == "text" and sys.stdout.isatty():

        def show(text: str) -> None:
            print(printable(text, kept="\n\t"), end="", flush=True)

        show(texts[0])
        (rest,) = predictions(config, texts, show)
        print(f"\n{rest}")
        return
    total = None if settings.input_file else len(texts)
    for printed in tqdm(predictions(config, texts), total=total, unit="text", disable=None):
        tqdm.write(printed, file=sys.stdout)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
