"""The files in a .tar or .zip archive, in its order. Links are left out, and hidden ones, as in folders."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from typing import BinaryIO


class _CheckedTarInfo(tarfile.TarInfo):
    """Raises ReadError for a damaged header, and for a file that is cut short between two members.

    tarfile takes both for the end of the archive.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> tarfile.TarInfo:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


def tar_members(stream: BinaryIO, name: str) -> Iterator[tuple[str, BinaryIO]]:
    """Yields name and content of each file in a tar archive, which is read once from its beginning to its end."""
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_CheckedTarInfo) as archive:
        archive.fileobj.seekable = lambda: False  # tarfile's stream lacks this method, which io needs.
        for member in archive:
            archive.members = []  # It would grow with every member.
            if member.isreg() and not _is_hidden(member.name):
                yield f"{name}/{member.name}", archive.extractfile(member)


def zip_members(file: BinaryIO, name: str) -> Iterator[tuple[str, BinaryIO]]:
    """Yields name and content of each file in a zip archive; the archive must be seekable."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            if not (member.is_dir() or is_link or _is_hidden(member.filename)):
                with archive.open(member) as content:
                    yield f"{name}/{member.filename}", io.BufferedReader(content)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part != "." for part in name.split("/"))
