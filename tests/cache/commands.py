"""Running the command line, in this process or in one of its own."""

import json

from cache_tools.__main__ import main


def command(capsys, *arguments):
    """(exit status, standard output, standard error) of one command."""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def command_json(capsys, *arguments, status=0):
    """The parsed --json output; checks the exit status."""
    got, out, err = command(capsys, *arguments, "--json")
    assert got == status, err or out
    return json.loads(out)
