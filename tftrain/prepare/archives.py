"""The files in a .tar or .zip archive, in its order, each with its first bytes. Links are left out."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, BinaryIO

from tftrain.files.reading import POINTER_BYTES
from tftrain.prepare.data_names import is_card

# A header of a tar archive with long names or further fields, the list of members at the end of a .zip, and a name.
_LARGEST_HEADER = 1 << 20
_LARGEST_LIST = 1 << 25
_LONGEST_NAME = 1 << 12
_LARGEST_CARD = 1 << 20


class _CheckedTarInfo(tarfile.TarInfo):
    """Raises ReadError for a damaged header, and for a file that is cut short between two members.

    tarfile takes both for the end of the archive. Headers that are too long and sparse files are errors too, because
    tarfile reads long headers, and the maps of sparse files, into memory as a whole.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> tarfile.TarInfo:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in b"LKxgX" and self.size > _LARGEST_HEADER:  # names of GNU, fields of PAX and Solaris
            raise tarfile.ReadError(f"a header of {self.size} bytes; expected at most {_LARGEST_HEADER}")
        return self._no_sparse() if self.type == tarfile.GNUTYPE_SPARSE else super()._proc_member(archive)

    def _no_sparse(self, *_: Any) -> tarfile.TarInfo:
        raise tarfile.ReadError("a sparse file; expected an archive without them")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _no_sparse


def open_zip(file: BinaryIO) -> zipfile.ZipFile:
    """Opens a .zip archive in a seekable file; raises BadZipFile if it is damaged or has too many members."""

    def read(size: int = -1) -> bytes:  # zipfile reads the whole list of members at once.
        if size > _LARGEST_LIST:
            raise zipfile.BadZipFile(f"a list of members of {size} bytes; expected at most {_LARGEST_LIST}")
        return file.read(size if size >= 0 else _LARGEST_LIST)

    return zipfile.ZipFile(SimpleNamespace(read=read, seek=file.seek, tell=file.tell, seekable=file.seekable))


# The path in the archive, the first bytes, and the name and content of a file.
Member = tuple[str, bytes, tuple[str, BinaryIO]]


def tar_members(stream: BinaryIO, name: str) -> Iterator[Member]:
    """Yields the files in a tar archive, which is read once from its beginning to its end."""
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_CheckedTarInfo) as archive:
        archive.fileobj.seekable = lambda: False  # tarfile's stream lacks this method, which io needs.
        for member in archive:
            archive.members, archive.pax_headers = [], {}  # They would grow with every member.
            if member.isreg():
                yield _member(name, member.name, archive.extractfile(member), member.size)


def zip_members(file: BinaryIO, name: str) -> Iterator[Member]:
    """Yields the files in a zip archive, which must be seekable."""
    with open_zip(file) as archive:
        for member in archive.infolist():
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            if not (member.is_dir() or is_link):
                with archive.open(member) as content:
                    yield _member(name, member.filename, io.BufferedReader(content), member.file_size)


def _member(archive: str, name: str, content: BinaryIO, size: int) -> Member:
    if len(name) > _LONGEST_NAME:
        raise tarfile.ReadError(f"a member with a name of {len(name)} characters; expected at most {_LONGEST_NAME}")
    beginning = content.peek(POINTER_BYTES)[:POINTER_BYTES] if size else b""
    if is_card(name) and size <= _LARGEST_CARD:  # It waits until the kind of the data is known.
        content = io.BufferedReader(io.BytesIO(content.read()))
    return name, beginning, (f"{archive}/{name}", content)
