"""The command line as people meet it: in this process, piped, and on a terminal."""

import contextlib
import json
import os
import pty
import subprocess
import sys

from click.testing import CliRunner

from valuefit.cli.main import main

# SIGINT may be ignored where tests run in the background, and children inherit that
MODULE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from valuefit.cli.main import main; main()"
)


def run(*words):
    """Run in this process; nothing but an exit code may come out, and never a traceback."""
    done = CliRunner().invoke(main, [str(word) for word in words], prog_name="valuefit")
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done


def facts(*words, code=0):
    """The one JSON object of a run with --json; NaN and Infinity are refused."""
    done = run(*words, "--json")
    assert done.exit_code == code, done.stderr
    return strict(done.stdout)


def strict(text):
    def refuse(word):
        raise AssertionError(f"JSON carries {word}")

    return json.loads(text, parse_constant=refuse)


def piped(*words, **settings):
    """Run as a process of its own, its output caught."""
    command = [sys.executable, "-c", MODULE, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **settings)


def on_terminal(*words, cwd, once=None, then=None):
    """Run with a terminal for stdout and stderr: exit code and all that was shown.

    `then(process)` is called when the bytes `once` have been seen.
    """
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    command = [sys.executable, "-c", MODULE, *map(str, words)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=cwd, env=environment) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that the other side has gone
            while part := os.read(ours, 65536):
                shown += part
                if once is not None and once in shown:
                    once = then(process)
        os.close(ours)
        return process.wait(timeout=60), shown.decode()
