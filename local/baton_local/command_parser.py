"""The parser of a command: defaults in every help text, did-you-mean for what is mistyped, and old spellings, which
work for one version with a note.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from baton_local.foreign_words import own_command, own_flag
from baton_wire.suggestions import suggestion

REMOVED_IN = "0.3"
"""Version without the old spellings."""
_OLD = "old_"
_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)")


class HelpWithDefaults(argparse.RawDescriptionHelpFormatter):
    """Adds the default to each option's help that does not name it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        is_silent = text is None or text is argparse.SUPPRESS or "default" in text
        if is_silent or action.default in (None, False, argparse.SUPPRESS) or action.default == []:
            return text
        return f"{text} (default: %(default)s)"


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors suggest the word that was probably meant."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", HelpWithDefaults)
        super().__init__(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        match = _CHOICE.search(message)
        if match is not None:
            known = re.findall(r"'([^']*)'", match["known"])
            own = own_command(match["word"])
            if meant := f": did you mean {own}?" if own in known else suggestion(match["word"], known):
                message = f"{message[: match.start()]}invalid choice: '{match['word']}'{meant}"
        # The usage of some commands fills a screen, and would hide the line that matters.
        self.exit(2, f"{self.prog}: error: {message} (see `{self.prog} --help`)\n")

    def refuse_unknown(self, unknown: Sequence[str]) -> NoReturn:
        """Refuse arguments that the command does not have, each with what was probably meant."""
        known = [option for action in self._actions if _is_shown(action) for option in action.option_strings]
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if flags:
            self.error("; ".join(f"unrecognized argument {flag}{_meant(flag, known)}" for flag in flags))
        words = " ".join(unknown)
        meant = f": did you mean --name {words}?" if len(unknown) == 1 and "--name" in known else ""
        self.error(f"unrecognized arguments: {words}{meant}")


def _meant(flag: str, known: list[str]) -> str:
    """The flag that was probably meant by one that the command does not have, as a question; empty: none is known."""
    own = own_flag(flag, known)
    return suggestion(flag, known) if own is None else f": did you mean {own}?"


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS


class _Renamed(argparse.Action):
    """An old spelling: sets what the new one sets, and says what to write."""

    def __init__(self, *arguments: Any, new: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._new = new

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(f"baton: {option_string} is now {self._new}; it goes with version {REMOVED_IN}", file=sys.stderr)
        setattr(namespace, self.dest, values)


def apply_renamed(options: argparse.Namespace) -> None:
    """Give the values of old spellings to the options that replace them."""
    for dest, value in list(vars(options).items()):
        if dest.startswith(_OLD):
            setattr(options, dest.removeprefix(_OLD), value)


def add_renamed(
    parser: argparse._ActionsContainer,
    old: str,
    new: str,
    *,
    dest: str | None = None,
    type: Callable[[str], Any] = str,
    choices: Iterable[str] | None = None,
) -> None:
    """Add an old spelling of an option, hidden. `dest`: the place of the new one, where it does not follow from its
    name. The value waits in a place of its own: a positional that is left out would write its default over it."""
    parser.add_argument(
        old,
        action=_Renamed,
        new=new,
        dest=_OLD + (dest or new.lstrip("-").replace("-", "_")),
        type=type,
        choices=choices,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
