"""Run the command line in this process, in a pipe, or on a terminal."""

import contextlib
import json
import os
import pty
import subprocess
import sys

from click.testing import CliRunner

from valuefit.cli.main import main

# Child processes inherit an ignored SIGINT from tests that run in the background; restore the default.
MODULE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from valuefit.cli.main import main; main()"
)


def run(*words):
    """Run in this process; any exception except SystemExit fails the test."""
    done = CliRunner().invoke(main, [str(word) for word in words], prog_name="valuefit")
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done


def facts(*words, code=0):
    """The JSON object that a run with --json prints."""
    done = run(*words, "--json")
    assert done.exit_code == code, done.stderr
    return strict(done.stdout)


def strict(text):
    """Parse JSON; NaN and Infinity fail the test."""

    def refuse(word):
        raise AssertionError(f"JSON contains {word}")

    return json.loads(text, parse_constant=refuse)


def piped(*words, **settings):
    """Run in a child process and capture its output."""
    command = [sys.executable, "-c", MODULE, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **settings)


def on_terminal(*words, cwd, once=None, then=None):
    """Run with a terminal for stdout and stderr; returns the exit code and the output.

    Calls `then(process)` when the output contains the bytes `once`.
    """
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    command = [sys.executable, "-c", MODULE, *map(str, words)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=cwd, env=environment) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux raises it when the process closes the terminal
            while part := os.read(ours, 65536):
                shown += part
                if once is not None and once in shown:
                    once = then(process)
        os.close(ours)
        return process.wait(timeout=60), shown.decode()
