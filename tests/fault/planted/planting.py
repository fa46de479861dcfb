"""A bug as data: which promise it breaks, where it goes into the code, and which tests are to catch it."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tests

ROOT = Path(tests.__file__).parent.parent


class MovedOnError(Exception):
    """The product has changed where a bug was to be planted."""


@dataclass(frozen=True)
class Edit:
    """One change of one file: a text that occurs there exactly once, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """One deliberate bug.

    Attributes:
        breaks: the promise that it breaks, in one line.
        edits: what plants it.
        catchers: the tests that are expected to catch it, the quickest first: files, or single tests of a file.
    """

    name: str
    breaks: str
    edits: Sequence[Edit]
    catchers: Sequence[str]


def planted(bug: Bug, root: Path = ROOT) -> dict[str, str]:
    """Return the files of a tree as the bug leaves them, by name; nothing is written.

    Raises:
        MovedOnError: when an edit does not fit any more, saying which and why.
    """
    texts: dict[str, str] = {}
    for edit in bug.edits:
        before = texts.get(edit.file) or (root / edit.file).read_text(encoding="utf-8")
        found = before.count(edit.old)
        if found != 1 or edit.old == edit.new:
            raise MovedOnError(
                f"bug {bug.name}: its text occurs {found} times in {edit.file}, instead of once; the product has moved "
                f"on, so plant it anew in tests/fault/planted/bugs.py. It looked for:\n{edit.old}"
            )
        texts[edit.file] = before.replace(edit.old, edit.new)
    for file, text in texts.items():
        if file.endswith(".py"):
            try:
                ast.parse(text)
            except SyntaxError as error:
                raise MovedOnError(f"bug {bug.name}: {file} is no Python any more: {error}") from None
    return texts


def plant(bug: Bug, root: Path) -> None:
    """Plant a bug in a scratch tree.

    Raises:
        MovedOnError: when it does not fit any more.
    """
    assert root.resolve() != ROOT.resolve(), "bugs go into copies, never into the working tree"
    for file, text in planted(bug, root).items():
        (root / file).write_text(text, encoding="utf-8")
