"""How many rows of logits the output layer computes at a time; the model and the planner read it.

The sum of the token embedding's gradient over chunks needs memory for one table more. So chunks save memory only if
there are more rows of logits than numbers in a row of the table.
"""

CHUNK_LOGITS = 2**23  # most logits of a chunk, if there are several: 32 MB in fp32
LEAST_ROWS = 32  # fewer rows in a chunk would make its products slow


def rows_of_chunk(rows: int | None, words: int, width: int) -> int:
    """Returns the rows of a chunk.

    Args:
        rows: of all logits; None: unknown.
        words: of a rank.
        width: numbers in a row of the token embedding.

    Returns:
        All rows, if the logits are at most as many numbers as the table has or as a chunk may have; else about equal
        parts, or as many as a chunk may have if their number is unknown.
    """
    most = max(LEAST_ROWS, CHUNK_LOGITS // words)
    if rows is None:
        return most
    chunks = 1 if rows <= width else -(-rows // most)
    return max(1, -(-rows // max(1, chunks)))
