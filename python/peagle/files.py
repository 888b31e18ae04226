"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from peagle.errors import FileWriteError


def write_atomically(path: Path, content: bytes | Callable[[IO[bytes]], None]) -> None:
    """Writes a file beside its place and renames it; a failure leaves nothing behind.

    Args:
        path: where the file goes; its folder must exist.
        content: the bytes, or a function that writes them to an open file.

    Raises:
        FileWriteError: the disk is full or the folder not writable.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as f:
            temporary = f.name
            if isinstance(content, bytes):
                f.write(content)
            else:
                content(f)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise _write_error(path, error) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def append_line(path: Path, line: str) -> None:
    """Appends a line to a file; a failure leaves the file as it was.

    Raises:
        FileWriteError: the disk is full or the file not writable.
    """
    try:
        with path.open("ab", buffering=0) as file:
            start, content = file.tell(), line.encode() + b"\n"
            try:
                while content:
                    content = content[file.write(content) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(start)
                raise
    except OSError as error:
        raise _write_error(path, error) from error


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it; one that exists is fine.

    Raises:
        FileWriteError: a file is in the way, or the parent is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileWriteError(
            f"{folder} cannot be made: {error.strerror}", hint="choose another folder"
        ) from error


def _write_error(path: Path, error: OSError) -> FileWriteError:
    return FileWriteError(
        f"{path} cannot be written: {error.strerror or error}",
        hint="free some disk space or choose another folder",
    )
