"""Estimates of flash attention's speed on GPUs, from what a warp does with a tile; docs/developers.md has the table.

    python tools/flash_model.py

Cycles of a multiprocessor for a warp's tile: 2048 multiplications and additions an `mma.sync`, in 2 cycles on A100 and
1.6 on H100, where this instruction reaches some 62% of the peak; 4 cycles an `ldmatrix.x4`; 16 exponentials a cycle.
The larger of the first two counts, and of the exponentials the half that 8 warps do not hide, or all with 4. SLACK
stands for everything else, such as masks, addresses, copies and barriers. It is a guess, the same before and now.
Dropout is not in the model, nor are atomic additions. docs/results/gpu/README.md has what an H200 measured.
"""

from typing import NamedTuple

SLACK = {"forward": 1.5, "backward": 2.0}
CYCLES = {"A100": 2.0, "H100": 1.6}
PEAK = {"A100": (312, 1024), "H100": (989, 2048)}  # TFLOP/s, and multiplications a cycle and multiprocessor
SHARED = {"A100": 164, "H100": 228}  # KiB of a multiprocessor


class Pass(NamedTuple):
    """What a warp does with a tile of `rows` x `columns` scores: its products, `ldmatrix.x4` and shared memory.

    `own` and `tile` are rows of the head in a block's shared memory: its own, of all sets, and those of all tiles.
    """

    rows: int
    columns: int
    products: int
    loads: int
    warps: int
    own: int
    tile: int
    extra: int = 0  # further bytes of shared memory

    def shared(self, head: int) -> float:
        """KiB of a block, but for some hundred bytes."""
        return ((self.own + self.tile) * (head + 8) * 2 + self.extra) / 1024

    def resident(self, gpu: str, head: int) -> int:
        """Warps on a multiprocessor: 8 at most, by the registers."""
        return min(8, self.warps * int(SHARED[gpu] / (self.shared(head) + 1)))

    def cycles(self, gpu: str, head: int) -> float:
        """Cycles for each 1024 scores."""
        scores = self.rows * self.columns
        tensor = self.products * scores * head / 2048 * CYCLES[gpu]
        exponentials = scores / 16 * (0.5 if self.resident(gpu, head) == 8 else 1)
        return (max(tensor, 4 * self.loads) + exponentials) * 1024 / scores


def over_head(head: int, rows: int, columns: int, held: bool) -> int:
    """Loads of a product over the head: of its left operand if registers do not hold it, and of its right one."""
    return (0 if held else rows // 16 * head // 16) + columns // 16 * head // 16


def over_rows(head: int, depth: int) -> int:
    """Loads of a product over the rows of a tile, whose left operand is in registers."""
    return depth // 16 * head // 16


def forward(head: int, rows: int, columns: int, warps: int) -> Pass:
    """The forward pass."""
    loads = over_head(head, rows, columns, held=False) + over_rows(head, columns)
    return Pass(rows, columns, 2, loads, warps, warps * rows, 4 * columns)


def backward(head: int, products: int, rows: int, tile: int, warps: int) -> Pass:
    """A pass of backward, in steps of 32 columns: of queries (3 products), of keys (4), or of both (5)."""
    held = head <= 64 and rows == 16
    loads = 2 * over_head(head, rows, 32, held) + {3: 1, 4: 2, 5: 2}[products] * over_rows(head, 32)
    extra = 0
    if products == 5:  # gradients of scores through shared memory; 16 columns of 16 or 32 queries over all keys
        tiles, keys = (2 if head // 16 > warps / 2 else 1), rows * warps
        loads += 2 + head // 16 * (2 // tiles) * (tiles + 1) * (keys // 16) // warps
        extra = keys * 40 * 2
    return Pass(rows, 32, products, loads, warps, 2 * rows * warps, 4 * tile, extra)


FORMS = {
    "forward, 64": (64, "forward", [forward(64, 32, 64, 4)], [forward(64, 32, 64, 4)]),
    "forward, 128": (128, "forward", [forward(128, 16, 64, 4)], [forward(128, 16, 64, 8)]),
    "backward, 64, deterministic": (64, "backward", *[[backward(64, 3, 32, 64, 4), backward(64, 4, 16, 32, 4)]] * 2),
    "backward, 64": (
        64,
        "backward",
        [backward(64, 3, 32, 64, 4), backward(64, 4, 16, 32, 4)],
        [backward(64, 5, 16, 32, 8)],
    ),
    "backward, 128, deterministic": (
        128,
        "backward",
        [backward(128, 3, 16, 64, 4), backward(128, 4, 16, 64, 4)],
        [backward(128, 3, 16, 32, 8), backward(128, 4, 16, 32, 8)],
    ),
    "backward, 128": (
        128,
        "backward",
        [backward(128, 3, 16, 64, 4), backward(128, 4, 16, 64, 4)],
        [backward(128, 5, 16, 32, 8)],
    ),
}


def speed(gpu: str, head: int, which: str, passes: list[Pass]) -> float:
    """TFLOP/s, where backward counts as 5 products."""
    peak, rate = PEAK[gpu]
    needed = {"forward": 2, "backward": 5}[which] * 1024 * head / rate
    return peak * needed / (SLACK[which] * sum(each.cycles(gpu, head) for each in passes))


def main() -> None:
    """Prints the table."""
    columns = "KiB of a block", "warps on A100, H100", "A100", "H100"
    print("| pass, head |" + "".join(f" {name}: before | now |" for name in columns))
    print("| --- |" + " --- | --- |" * len(columns))
    for name, (head, which, *forms) in FORMS.items():
        cells = [
            ["+".join(f"{each.shared(head):.0f}" for each in form) for form in forms],
            [", ".join(str(min(each.resident(gpu, head) for each in form)) for gpu in SHARED) for form in forms],
            *([f"{speed(gpu, head, which, form):.0f}" for form in forms] for gpu in PEAK),
        ]
        print(f"| {name} |" + "".join(f" {before} | {now} |" for before, now in cells))


if __name__ == "__main__":
    main()
