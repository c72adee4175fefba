"""Names and addresses that others chose: which of them become paths of this machine, and which are opened.

A listing, an archive, an index, a manifest or a link may name anything. Whatever makes a path of such a name asks this
module, and so does whatever opens an address.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tftrain.host.text import CONTROLS, USERINFO, one_line

_ARCHIVES = ("zip", "tar")
PROTOCOLS = ("s3", "gs", "gcs", "az", "abfs", "abfss", "adl", "http", "https", "hf", "file", "memory", *_ARCHIVES)
# A link of a chain of addresses: its protocol, and its server or bucket.
_LINK = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,15})://((?:(?!::)[^\s\"',/])*)")
# A snapshot in the cache of the Hugging Face hub, whose files are links to ../../blobs.
_SNAPSHOT = re.compile(r"(.*/models--[^/]+)/snapshots/[^/]+(?:/[^/]+)*")


def check(name: str, error: type[Exception] = ValueError) -> str:
    """Returns a name that is a path below any folder.

    Raises an `error` if the name is empty or absolute, leads out of a folder, or has characters that no name needs.
    """
    if {"", ".", ".."}.intersection(name.split("/")) or "\\" in name:
        raise error(f"the name {one_line(repr(name), 200)}: expected a name inside a folder")
    if CONTROLS.search(name):
        raise error(f"the name {one_line(repr(name), 200)}: expected a name of printable characters")
    return name


def inside(folder: str | Path, name: str, error: type[Exception] = ValueError) -> Path:
    """Returns the path of a file in a folder; raises `error` as `check`, and for a link that leads out of it."""
    path, root = Path(folder, check(name, error)), os.path.realpath(folder)
    if "/" in name or os.path.islink(path):
        snapshot = _SNAPSHOT.fullmatch(root)
        if not os.path.realpath(path).startswith(os.path.join(snapshot[1] if snapshot else root, "")):
            raise error(f"{path}: a symbolic link leads out of {folder}; put the file itself there")
    return path


def check_links(folder: str | Path, error: type[Exception] = ValueError) -> None:
    """Raises `error` if a file in a folder is a link that leads out of it; see `inside`."""
    if os.path.isdir(folder):
        for entry in os.scandir(folder):
            if entry.is_symlink() and entry.is_file():
                inside(folder, entry.name, error)


def check_address(address: str) -> None:
    """Raises a ValueError if an address, or a link of a chain of them, is of no known protocol, or has a password."""
    for link in address.split("::"):
        protocol, is_link, place = link.partition("://")
        if not is_link and ("/" in link or "." in link):
            continue  # a path, in which an archive is
        if protocol.lower() not in PROTOCOLS:
            raise ValueError(f"Protocol not known: {one_line(protocol, 40)}")
        if USERINFO[protocol.lower() in ("http", "https")].match(place):
            raise ValueError("a user or a key in the address; remove it, and give it by environment variables")


def foreign_addresses(values: Mapping[str, object], given: Iterable[object]) -> list[str]:
    """Returns the names of the values with an address at a server or a bucket that nothing in `given` names."""

    def servers(value: object) -> set[tuple[str, ...]]:
        links = _LINK.findall(value) if isinstance(value, str) else ()
        return {link for link in links if link[0] not in _ARCHIVES}

    known = set().union(*map(servers, given))
    return [name for name, value in values.items() if servers(value) - known]
