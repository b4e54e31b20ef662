"""Keys of racks: a pair for each, of which the rack file has the public half and a private file both.

They are CURVE keys (Curve25519) in Z85, 40 characters of ASCII.
"""

import os
import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vhca.private_files import create_private

_MOST_BYTES: Final = 4096


class KeyFileError(Exception):
    """A file has no keys, or is not private; the text says what to do."""


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """A rack's keys, Z85."""

    public: str
    secret: str


def is_key(text: str) -> bool:
    """Tell whether a text has the form of a key."""
    return re.fullmatch(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}", text) is not None


def save(path: Path, pair: KeyPair) -> None:
    """Write a new file that its owner alone can read; OSError if there is one already, or it cannot be written."""
    if path.exists():
        raise FileExistsError(17, "there is such a file already, and a key that is replaced is lost", str(path))
    with os.fdopen(create_private(path), "w", encoding="ascii") as file:
        file.write(f'# Keep this file to yourself.\npublic = "{pair.public}"\nsecret = "{pair.secret}"\n')


def load(path: Path) -> KeyPair:
    """The keys in a file.

    :raises KeyFileError: it has none, cannot be read, or others can read it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{path} is no file; `vhca rack keys` makes one")
            if status.st_mode & 0o077:
                raise KeyFileError(
                    f"{path}: others may read it (mode {stat.S_IMODE(status.st_mode):04o}); its keys are known now:"
                    " make new ones with `vhca rack keys`"
                )
            document = tomllib.loads(file.read(_MOST_BYTES).decode("ascii"))
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}; `vhca rack keys` makes one") from error
    except ValueError as error:
        raise KeyFileError(f"{path} is no file of keys; `vhca rack keys` makes one") from error
    pair = KeyPair(str(document.get("public", "")), str(document.get("secret", "")))
    if not is_key(pair.public) or not is_key(pair.secret):
        raise KeyFileError(f"{path} has no keys; `vhca rack keys` makes one")
    return pair
