"""`diagnose completion`: what a shell needs to complete commands, options, and names of rules and fixers.

The text is made from the parsers themselves, so that it knows every option that there is, and no other.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diagnose.cli.streams import result

SHELLS = ("bash", "zsh", "fish")
_OF_FIXERS = frozenset({"--only", "--skip", "--without"})
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


@dataclass(frozen=True)
class Option:
    """One option of a command."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    """The words that may follow it; empty where that is a file, anything, or nothing."""
    takes_value: bool
    help: str


@dataclass(frozen=True)
class Command:
    """One command as a shell completes it."""

    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...] = ()
    """The words that may stand in it besides options and files."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `diagnose`."""
    parser = subparsers.add_parser(
        "completion",
        help="completion of commands, options and names for bash, zsh and fish",
        description="Prints what the shell needs. For good, in ~/.bashrc or ~/.zshrc: "
        'eval "$(diagnose completion bash)", or zsh; for fish: '
        "diagnose completion fish > ~/.config/fish/completions/diagnose.fish",
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Print the text for one shell."""
    from diagnose.cli import command_parsers
    from diagnose.plugins import load

    catalogue = load()
    fixers, rules = tuple(sorted(catalogue.fixers)), tuple(sorted(catalogue.rules))
    commands = {
        name: Command(said, tuple(_options(parser, fixers)), _words(name, parser, rules, fixers))
        for name, (said, parser) in command_parsers().items()
    }
    if args.shell == "fish":
        result("\n".join(_fish(commands)))
    else:
        result((_ZSH if args.shell == "zsh" else "") + _bash(commands))
    return 0


def _options(parser: argparse.ArgumentParser, fixers: tuple[str, ...]) -> Iterator[Option]:
    for action in parser._actions:
        if action.option_strings:
            of_fixers = not _OF_FIXERS.isdisjoint(action.option_strings)
            values = fixers if of_fixers else tuple(map(str, action.choices or ()))
            yield Option(tuple(action.option_strings), values, action.nargs != 0, action.help or "")


def _words(
    name: str, parser: argparse.ArgumentParser, rules: tuple[str, ...], fixers: tuple[str, ...]
) -> tuple[str, ...]:
    if name in ("explain", "check"):
        return fixers if name == "check" else (*rules, *fixers)
    choices = (action.choices for action in parser._actions if not action.option_strings)
    return tuple(str(word) for words in choices if words for word in words)


def _bash(commands: Mapping[str, Command]) -> str:
    """A function that looks at the word before the cursor and at the command; files where it has nothing to say."""
    after, options, words = [], [], []
    for name, command in commands.items():
        for option in command.options:
            if option.values:
                before = "|".join(f'"{name} {one}"' for one in option.names)
                after.append(f'    {before}) words="{" ".join(option.values)}" ;;')
        named = [one for option in command.options for one in option.names]
        options.append(f'      {name}) words="{" ".join(named)}" ;;')
        if command.words:
            words.append(f'      {name}) words="{" ".join(command.words)}" ;;')
    return "\n".join(
        [
            "_diagnose() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
            '  local command="${COMP_WORDS[1]}" words=""',
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    words="{" ".join(commands)} --help --version"',
            '  else case "$command $before" in',
            *after,
            '    *) case "$current" in',
            '      -*) case "$command" in',
            *options,
            "      esac ;;",
            '      *) case "$command" in',
            *(words or ["      :) ;;"]),
            "      esac ;;",
            "    esac ;;",
            "  esac; fi",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -o default -F _diagnose diagnose",
        ]
    )


def _fish(commands: Mapping[str, Command]) -> Iterator[str]:
    for name, command in commands.items():
        yield f"complete -c diagnose -n __fish_use_subcommand -f -a {name} -d {_quoted(command.help)}"
    for name, command in commands.items():
        here = f"complete -c diagnose -n '__fish_seen_subcommand_from {name}'"
        if command.words:
            yield f"{here} -a {_quoted(' '.join(command.words))}"
        for option in command.options:
            names = " ".join(f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in option.names)
            follows = f" -x -a {_quoted(' '.join(option.values))}" if option.values else " -r" * option.takes_value
            yield f"{here} {names}{follows} -d {_quoted(option.help)}"


def _quoted(words: str) -> str:
    """Quote for fish, in whose single quotes a backslash takes a quote and itself literally."""
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"
