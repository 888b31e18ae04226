"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
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
        raise FileWriteError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="free some disk space or choose another folder",
        ) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
