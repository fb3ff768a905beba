"""The command line, ``clnet``.

Exit status: 0 success; 1 the doctor found a fault; 2 bad input, one sentence on stderr;
130 interrupted; 141 the reader of the output closed the pipe.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from clnet.errors import WIDTH, nearest, printable, unknown

GROUPS: dict[str, tuple[str, ...]] = {
    "networks": ("train", "evaluate", "predict"),
    "files": ("info", "convert"),
    "speed": ("explain", "tune", "bench"),
    "the machine": ("devices", "doctor"),
}
"""The commands in the order of the help."""
FILES = ("NET", "DATA", "FILE", "FILE|P", "A", "B", "CSV")
"""Metavariables of arguments that are files."""
COMPLETE_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files"}
"""How shells complete files, as `shtab.FILE`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    import warnings

    from clnet.errors import ClnetError, ClnetWarning, reason

    default = warnings.formatwarning
    arguments = argparse.Namespace(parser=None)

    def one_line(message: Any, category: type[Warning], *where: Any) -> str:
        if issubclass(category, ClnetWarning):
            return f"clnet: warning: {_in_options(str(message), arguments.parser)}\n"
        return default(message, category, *where)

    try:
        warnings.formatwarning = one_line  # type: ignore[assignment]  # fewer names
        arguments = _parsed(argv)
        status: int = arguments.run(arguments)
        if sys.stdout is not None:  # as of a process that was started without it
            sys.stdout.flush()
        return status
    except ClnetError as error:
        if error.rank:  # rank 0 prints it
            return 2
        return _failed(_in_options(str(error), arguments.parser))
    except MemoryError as error:
        why = str(error) or "the files' content does not fit"
        return _failed(f"not enough memory: {why}")
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:  # files raise FormatError
        _discard_output()
        return _failed(f"cannot write the output: {reason(error)}")
    finally:
        warnings.formatwarning = default


def _failed(sentence: str, status: int = 2) -> int:
    """Print a sentence on stderr, if that is possible; return the exit status."""
    with suppress(OSError):
        print(f"clnet: {sentence}", file=sys.stderr)
    return status


def _in_options(sentence: str, parser: argparse.ArgumentParser | None) -> str:
    """Return a sentence about arguments in Python as one about a command's options."""
    for action in () if parser is None else parser._actions:
        if not action.option_strings:
            continue
        option = action.option_strings[-1]
        sentence = re.sub(rf'\b{action.dest}="(\w+)"', rf"{option} \1", sentence)
        if "_" in action.dest:
            name = rf"(?<![\w./'\"-]){action.dest}(?![\w./'\"-])"
            sentence = re.sub(name, option, sentence)
    return sentence


def _discard_output() -> None:
    """Let Python's flush of stdout at exit succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that fits `WIDTH`; the description lists the commands, by groups."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=WIDTH)

    def add_argument(self, action: argparse.Action) -> None:
        """Leave out argparse's own list of commands."""
        if not isinstance(action, argparse._SubParsersAction):
            super().add_argument(action)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, **options)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(2, f"clnet: {printable(message)} (see {self.prog} --help)\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Exit as `error` does, for arguments that the parser does not know."""
        option = next((word for word in words if word.startswith("-")), None)
        if option is None:
            self.error(f"unexpected argument {' '.join(words)}")
        name = option.partition("=")[0]
        near = nearest(name, self._option_string_actions)
        self.error(f"unknown option {name}" + (f": did you mean {near}?" * bool(near)))

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Raise the usual error for an unknown name."""
        if action.choices is not None and value not in action.choices:
            raise unknown(action.dest, value, action.choices)


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments, or exit with what is wrong with them."""
    arguments, more = parser().parse_known_args(argv)
    if more:
        arguments.parser.refuse(more)
    return arguments


def parser() -> _Parser:
    """Return the parser of all commands, also for shtab, which makes completions."""
    from clnet import __version__
    from clnet.cli.options import COMMANDS, NETWORKS, SOURCES, add_options
    from clnet.formats import DATA_SUFFIXES
    from clnet.formats.delimited import TEXT_SUFFIXES

    suffixes = ", ".join((*DATA_SUFFIXES, *TEXT_SUFFIXES[1:]))
    data = f"\n{24 * ' '}".join(textwrap.wrap(suffixes, 68))
    main = _Parser(
        prog="clnet",
        epilog=textwrap.dedent(f"""\
            The suffix of a file selects its format.
              networks  {NETWORKS}
              data      {data}
              larger    {SOURCES}
                        for train, evaluate and predict, which read by parts what
                        does not fit in the --buffer

            --device takes "cpu", "gpu", a part of a device's or platform's name
            ("nvidia", "pocl"), or an index ("0:1"). The default is $CLNET_DEVICE, or
            else the best device.

            examples:
              clnet train digits
              clnet train iris.csv --target species --save iris.safetensors
              clnet evaluate iris.safetensors test.csv
              clnet predict iris.safetensors new.csv --out answers.csv
              clnet explain iris.safetensors --device gpu --batch 32

            clnet COMMAND --help tells more; clnet doctor helps if there is no device.
            """),
    )
    main.add_argument("--version", action="version", version=f"clnet {__version__}")
    commands = main.add_subparsers(dest="command", metavar="COMMAND")
    main.set_defaults(
        parser=main,
        run=lambda _: main.error(f"a command is required: {', '.join(COMMANDS)}"),
    )
    for name, command in COMMANDS.items():
        head = "examples" if len(command.examples) > 1 else "example"
        sub: _Parser = commands.add_parser(
            name, help=command.summary,
            description=textwrap.fill(command.text, WIDTH),
            epilog=f"{head}:\n  " + "\n  ".join(command.examples),
        )
        if command.choice:
            choice = sub.add_mutually_exclusive_group()
            add_options(choice.add_argument, command.choice)
        actions = add_options(sub.add_argument, command.rows)
        for title, rows in command.groups.items():
            group = sub.add_argument_group(title)
            actions += add_options(group.add_argument, rows)
        for action in actions:
            if action.metavar in FILES:
                action.complete = COMPLETE_FILES  # type: ignore[attr-defined]
        sub.set_defaults(parser=sub, run=command.run, **command.defaults)
    main.description = _listing(commands)
    return main


def _listing(commands: Any) -> str:
    """Return the commands by their groups, with a line about each."""
    shorts = {action.dest: action.help for action in commands._choices_actions}
    lines = [
        "Feed-forward neural networks, run and trained on any OpenCL device."
    ]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:9}  {shorts[name]}" for name in names)]
    return "\n".join(lines)
