"""Which files below a folder, in an archive or at an address are data. The others are left out, counted and named.

A file that is named itself, or that a glob matches, is always data.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tftrain.files.reading import is_pointer
from tftrain.host.text import listed

Entry = TypeVar("Entry")
COMPRESSED = ("gz", "zst", "bz2", "xz", "lz4")
# Parts of a path that jobs, tables and systems use for themselves. "=" is in names of partitions; source code is data.
_HIDDEN = re.compile(
    r"\..*|_(?!.*=|.*\.(py|pyi|c|h|cc|cpp|hpp|cs|go|java|jsx?|tsx?|rb|rs|kt|scala|php|scss|html)$).*"
    r"|lost\+found|@eadir|\$recycle\.bin|system volume information",
    re.IGNORECASE,
)
_NO_DATA = re.compile(
    r".*(~|\.(bak|swp|swo|orig|rej|tmp|temp|part|partial|crdownload|crc|md5|sha\d+|md5sums?|sha\d+sums?|asc|sig|lnk))"
    r"|#.*#|(md5|sha\d*|b2|ck)sums?(\.txt)?|checksums?(\.\w+)?|(eh)?thumbs\.db|desktop\.ini|icon\r"
    r"|dataset_(infos?|dict)\.json|cache-\w+\.arrow",
    re.IGNORECASE,
)
# What describes data of another kind.
_CARD = re.compile(
    r"(readme|licen[cs]e|copying|notice|authors|contribut(ors|ing)|change(log|s)|citation|code_of_conduct"
    r"|(dataset|data|model)[_-]?card)([._-].*)?|croissant\.json|.*\.(png|jpe?g|gif|svg|ico|webp|bmp|pdf|bib|cff|pyc)",
    re.IGNORECASE,
)
_MOST_CARDS = 64  # that wait, in an archive
_SHOWN = 3


def ending(name: str) -> str:
    """Returns the ending of a name in lower case, without those of compression after another: .tar of a.tar.gz."""
    _, *endings = name.lower().rpartition("/")[2].split(".")
    while len(endings) > 1 and endings[-1] in COMPRESSED:
        endings.pop()
    return f".{endings[-1]}" if endings else ""


def is_card(name: str) -> bool:
    """Whether a file describes the data beside it, if they are of another kind."""
    return _CARD.fullmatch(name.rpartition("/")[2]) is not None


def hides(part: str) -> bool:
    """Whether everything below a folder of this name is no data."""
    return _HIDDEN.fullmatch(part) is not None and part != "."


def is_no_data(path: str) -> bool:
    """Whether the path of a file below a folder says that it is no data."""
    *folders, name = path.split("/")
    return any(map(hides, folders)) or hides(name) or _NO_DATA.fullmatch(name) is not None


def data(entries: Iterable[tuple[str, bytes | None, Entry]], left_out: list[str]) -> Iterator[Entry]:
    """Yields the entries that are data, in their order; a description that stays comes after the first of its kind.

    Args:
        entries: path below the folder or in the archive, the first bytes, if they are known, and the entry.
        left_out: gets the paths of the others.
    """
    kinds, cards = set(), []
    for path, beginning, entry in entries:
        name = path.rpartition("/")[2]
        if is_no_data(path):
            left_out.append(path)
        elif beginning == b"":
            left_out.append(f"{path} (empty)")
        elif beginning and b'"_data_files"' in beginning[:30]:  # state.json of `datasets`
            left_out.append(path)
        elif beginning and is_pointer(beginning):
            left_out.append(f"{path} (a Git LFS pointer; run git lfs pull)")
        elif is_card(name) and ending(name) not in kinds and len(cards) < _MOST_CARDS:
            cards.append((path, ending(name), entry))
        else:
            kinds.add(ending(name))
            yield entry
            yield from (card for _, kind, card in cards if kind == ending(name))
            cards = [card for card in cards if card[1] != ending(name)]
    if kinds:
        left_out += [path for path, _, _ in cards]
    else:
        yield from (card for _, _, card in cards)


def words(left_out: Sequence[str]) -> str:
    """Returns a line that counts and names what is left out."""
    plural = "file that is" if len(left_out) == 1 else "files that are"
    return f"left out {len(left_out):,} {plural} no data: {listed(left_out, _SHOWN)}; a file that is named is read"
