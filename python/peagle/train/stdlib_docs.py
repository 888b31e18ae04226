"""The documentation strings and sources of the running Python's standard library (PSF licence).

Only a fixed list of modules is imported: none of them prints, opens a window or starts a
process when it is imported.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Final

_MODULE_NAMES: Final = """
abc builtins argparse array ast asyncio base64 bisect bz2 calendar cmath cmd code codecs collections
collections.abc colorsys compileall concurrent.futures configparser contextlib contextvars copy
csv ctypes.util dataclasses datetime decimal difflib dis email.message email.utils enum errno
filecmp fileinput fnmatch fractions ftplib functools gc getpass gettext glob graphlib gzip hashlib
heapq hmac html html.parser http.client http.cookies http.server imaplib importlib.metadata
importlib.resources inspect io ipaddress itertools json keyword linecache locale logging
logging.handlers lzma mailbox math mimetypes multiprocessing.pool numbers operator os os.path
pathlib pickle pickletools pkgutil platform plistlib poplib pprint profile pstats queue quopri
random re reprlib sched secrets selectors shelve shlex shutil signal smtplib socket socketserver
sqlite3 ssl stat statistics string struct subprocess symtable sys sysconfig tarfile tempfile
textwrap threading time timeit tokenize trace traceback tracemalloc types typing unicodedata
unittest unittest.mock urllib.parse urllib.request urllib.robotparser uuid warnings wave weakref
webbrowser wsgiref.util xml.dom.minidom xml.etree.ElementTree xmlrpc.client zipfile zlib
"""

MIN_PARAGRAPH: Final = 40
MAX_TEXT: Final = 900
MAX_SOURCE_LINES: Final = 24


@dataclass(frozen=True, slots=True)
class DocEntry:
    """One documented object: its full name, its call signature ("" if unknown) and its text."""

    name: str
    signature: str
    paragraph: str
    text: str
    source: str


@cache
def stdlib_entries() -> tuple[DocEntry, ...]:
    """Return every documented public object of the module list, in a fixed order.

    Depends on the Python version, on nothing else: two runs give the same tuple. Empty when
    the interpreter runs without documentation strings (``-OO``).
    """
    seen: set[str] = set()
    entries: list[DocEntry] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module_name in _MODULE_NAMES.split():
            try:
                module = importlib.import_module(module_name)
            except ImportError:
                continue  # an optional module of this build
            for name, value in _documented(module):
                entry = _entry(name, value)
                if entry is not None and entry.text not in seen:
                    seen.add(entry.text)
                    entries.append(entry)
    return tuple(entries)


def _documented(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the module, its public functions and classes, and the classes' own public methods."""
    yield module.__name__, module
    for name in sorted(vars(module)):
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        if not (inspect.isroutine(value) or inspect.isclass(value)):
            continue
        home = getattr(value, "__module__", None)
        if isinstance(home, str) and home.split(".")[0].lstrip("_") not in (
            module.__name__.split(".")[0],
            "nt",
            "posix",
        ):
            continue
        full_name = f"{module.__name__}.{name}"
        yield full_name, value
        if inspect.isclass(value):
            for method_name in sorted(vars(value)):
                method = vars(value)[method_name]
                if not method_name.startswith("_") and inspect.isroutine(method):
                    yield f"{full_name}.{method_name}", method


def _entry(name: str, value: object) -> DocEntry | None:
    doc = getattr(value, "__doc__", None)
    if not isinstance(doc, str):
        return None
    text = inspect.cleandoc(doc)
    # Texts with an address in them would differ from run to run.
    if " at 0x" in text or not text.isascii():
        return None
    paragraph = " ".join(text.split("\n\n")[0].split())
    if len(paragraph) < MIN_PARAGRAPH:
        return None
    return DocEntry(name, _signature(value), paragraph, _cut(text), _source(value))


def _cut(text: str) -> str:
    """Return whole leading paragraphs of at most MAX_TEXT characters (a part of the first)."""
    if len(text) <= MAX_TEXT:
        return text
    kept = text[:MAX_TEXT].rsplit("\n\n", 1)[0]
    return kept if len(kept) < MAX_TEXT else kept.rsplit(" ", 1)[0]


def _signature(value: object) -> str:
    try:
        text = str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return "" if " at 0x" in text or len(text) > 120 else text


def _source(value: object) -> str:
    """Return the source of a short Python function, without its common indent, or ""."""
    if not inspect.isfunction(value):
        return ""
    try:
        lines, _ = inspect.getsourcelines(value)
    except (OSError, TypeError):
        return ""
    if not 4 <= len(lines) <= MAX_SOURCE_LINES:
        return ""
    return inspect.cleandoc("\n" + "".join(lines)).rstrip()
