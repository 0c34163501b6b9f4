"""Run the command line in this process, in a subprocess with pipes, and on a pseudo-terminal."""

import contextlib
import json
import os
import pty
import subprocess
import sys

from click.testing import CliRunner

from valuefit.cli.main import main

# Children inherit SIGINT, which a shell ignores for tests in the background, so restore its handler.
MODULE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from valuefit.cli.main import main; main()"
)


def run(*words):
    """Run in this process; no exception but SystemExit may escape."""
    done = CliRunner().invoke(main, [str(word) for word in words], prog_name="valuefit")
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done


def refused(*words, code=1):
    """The message of a command that must print nothing else, and end with this exit code."""
    done = run(*words)
    assert (done.exit_code, done.stdout) == (code, ""), done.stdout
    return done.stderr


def facts(*words, code=0):
    """The JSON object that a run with --json prints; `code` is the expected exit code."""
    done = run(*words, "--json")
    assert done.exit_code == code, done.stderr
    return strict(done.stdout)


def strict(text):
    """Parse JSON; NaN and Infinity fail the test."""

    def fail(word):
        raise AssertionError(f"JSON contains {word}")

    return json.loads(text, parse_constant=fail)


def piped(*words, **settings):
    """Run in a subprocess and capture its output."""
    command = [sys.executable, "-c", MODULE, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **settings)


def on_terminal(*words, cwd, once=None, then=None):
    """Run with a terminal as stdout and stderr; returns the exit code and everything printed.

    `then(process)` is called as soon as the output contains the bytes `once`.
    """
    parent_end, child_end = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    command = [sys.executable, "-c", MODULE, *map(str, words)]
    with subprocess.Popen(command, stdout=child_end, stderr=child_end, cwd=cwd, env=environment) as process:
        os.close(child_end)
        shown = b""
        with contextlib.suppress(OSError):  # Linux raises it when the child has closed its end
            while part := os.read(parent_end, 65536):
                shown += part
                if once is not None and once in shown:
                    once = then(process)
        os.close(parent_end)
        return process.wait(timeout=60), shown.decode()
