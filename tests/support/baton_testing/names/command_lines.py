"""Flags and arguments of commands, with the values that they are restricted to."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from unittest import mock

import pytest


class _Made(Exception):
    """Carries the parser of a command that was about to parse."""


def parser_of(parse: Callable[[], object]) -> argparse.ArgumentParser:
    """The parser that a function makes for itself; the function is stopped where it would parse."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _Made(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop), pytest.raises(_Made) as caught:
        parse()
    parser = caught.value.args[0]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def commands(parser: argparse.ArgumentParser) -> frozenset[str]:
    """Names of a parser's subcommands."""
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return frozenset(name for action in actions for name in action.choices)


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A line for each flag and each of its values, those of subcommands included."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from options(inner)
            continue
        name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        yield f"{parser.prog} {name}"
        yield from (f"{parser.prog} {name} {choice}" for choice in action.choices or ())
