"""What `valuefit evaluate` was asked for: from the command line, from a TOML file, and written back into one."""

from __future__ import annotations

import difflib
import os
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from valuefit import __version__

LONGEST = 1 << 20  # bytes of a TOML file
TABLE_FILES = (".npy", ".csv", ".txt")  # a policy that ends so is a file, any other is code


@dataclass(frozen=True)
class Settings:
    """Every option of `valuefit evaluate`, with its default; None where nothing was asked."""

    log: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    features: str = "auto"
    discount: float = 0.99
    policy: str | None = None
    values: str = "state"
    trace: float = 0.0
    ridge: float = 0.0
    starts: str | None = None
    solver: str = "auto"
    tol: float | Literal["statistical"] = "statistical"
    max_passes: float = 500.0
    seed: int = 0
    report: str | None = None
    save: str | None = None
    json: bool = False
    quiet: bool = False
    force: bool = False


PATHS = ("log", "policy", "starts", "report", "save")
NUMBERS = ("discount", "trace", "ridge", "max_passes")
SWITCHES = ("json", "quiet", "force")
CHOICES = {"values": ("state", "state-action")}
SHOWING = ("json", "quiet", "force")  # how a run is shown is not what it is, and who may overwrite is asked each time


def default_of(name: str) -> Any:
    """The default of an option, for its help text."""
    found = next(one for one in fields(Settings) if one.name == name)
    return None if found.default is MISSING else found.default


def merge(given: dict[str, Any], config: str | None) -> Settings:
    """The settings of a run: what the command line gives wins over the file, the file over the defaults.

    given: options by name, None where the command line does not mention them. config: a TOML file, or None. What
    would run code, or overwrite files, must stand on the command line too.
    """
    said = {name: value for name, value in given.items() if value is not None}
    told = {} if config is None else read_config(Path(config))
    policy = told.get("policy")
    if policy is not None and "policy" not in said and is_code(policy):
        raise ValueError(
            f"{config} asks for the policy {policy!r}, which is code, and a file may not ask for that. If you trust "
            f"it, repeat it on the command line: --policy {policy}"
        )
    if told.get("force") and not said.get("force"):
        raise ValueError(
            f"{config} says force, but what is overwritten is not for a file to decide. Repeat it on the command "
            "line: --force"
        )
    columns = {**told.get("columns", {}), **said.get("columns", {})}
    return Settings(**{**told, **said, "columns": columns})


def is_code(policy: str) -> bool:
    """Whether a policy of this name would be imported."""
    return ":" in policy and Path(policy).suffix.lower() not in TABLE_FILES


# ---- reading ------------------------------------------------------------------------------------------------


def read_config(path: Path) -> dict[str, Any]:
    """Options by name from a TOML file, checked; its relative paths start at the file's own folder."""
    import tomllib

    if not path.is_file():
        raise ValueError(f"There is no file {str(path)!r}.")
    with open(path, "rb") as stream:
        data = stream.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise ValueError(f"{path} is longer than a file of options can be.")
    try:
        told = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    options = {}
    known = [one.name.replace("_", "-") for one in fields(Settings)]
    for key, value in told.items():
        name = key.replace("_", "-")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It knows {', '.join(known)}."
            raise ValueError(f"{path} has the key {key!r}, which valuefit evaluate does not know. {hint}")
        name = name.replace("-", "_")
        if name in options:
            raise ValueError(f"{path} sets {key!r} twice, once with a dash and once with an underscore.")
        options[name] = _checked(path, name, value)
    for name in PATHS:
        if name in options:
            options[name] = _from_folder(name, options[name], path.parent)
    return options


def _checked(path: Path, name: str, value: Any) -> Any:
    """The value as the option takes it, or a sentence."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "columns":
        return _columns(path, value)
    if name in SWITCHES:
        right, wanted = isinstance(value, bool), "true or false"
    elif name == "seed":
        right, wanted = number and isinstance(value, int), "a whole number"
    elif name in NUMBERS:
        right, wanted = number, "a number"
    elif name == "tol":
        right, wanted = number or value == "statistical", 'a number or "statistical"'
    elif name in CHOICES:
        right, wanted = value in CHOICES[name], " or ".join(f'"{word}"' for word in CHOICES[name])
    else:
        right, wanted = isinstance(value, str), "text in quotes"
    if not right:
        raise ValueError(f"{path} says {name.replace('_', '-')} = {value!r}; it must be {wanted}.")
    return float(value) if name in NUMBERS else value


def _columns(path: Path, value: Any) -> dict[str, Any]:
    """Our names to theirs; empty text leaves a column out, for TOML has no word for nothing."""
    wrong = not isinstance(value, dict)
    for theirs in () if wrong else value.values():
        many = theirs if isinstance(theirs, list) else [theirs]
        wrong |= not many or not all(isinstance(name, str) for name in many)
    if wrong:
        raise ValueError(
            f'{path} says columns = {value!r}; it must be a table of names, as in columns = {{ reward = "r", obs = '
            '["x", "v"] }.'
        )
    return {ours: theirs or None for ours, theirs in value.items()}


def _from_folder(name: str, value: str, folder: Path) -> str:
    """A relative path of the file as seen from the working directory."""
    if _no_path(name, value) or os.path.isabs(value):
        return value
    return os.path.relpath(os.path.join(folder, value))


def _no_path(name: str, value: str) -> bool:
    if name == "policy":
        return Path(value).suffix.lower() not in TABLE_FILES
    return name == "log" and (value.startswith("minari:") or "://" in value)


# ---- writing ------------------------------------------------------------------------------------------------


def config_text(settings: Settings, folder: Path) -> str:
    """The TOML text of a file in `folder` that repeats a run: every setting that affects the result, with defaults."""
    import tomli_w

    lines = [f"# Written by valuefit {__version__}; valuefit evaluate --config FILE runs it again."]
    if settings.log is None:
        lines.append("# No log is named, so it is the one that comes with valuefit.")
    if settings.policy is not None and is_code(settings.policy):
        lines.append("# The policy is code, so it must be repeated on the command line: --policy module:function")
    options: dict[str, Any] = {}
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.name in SHOWING or value is None or value == {}:
            continue
        if one.name == "columns":  # TOML has no null
            value = {ours: theirs or "" for ours, theirs in value.items()}
        elif one.name in PATHS and not _no_path(one.name, value) and not os.path.isabs(value):
            value = os.path.relpath(value, folder)
        options[one.name.replace("_", "-")] = value
    text = "\n".join(lines) + "\n" + tomli_w.dumps(options)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text[text.rfind("\n", 0, error.start) + 1 : text.find("\n", error.start)]
        raise ValueError(f"The name in {line!r} is not text in UTF-8, so TOML cannot hold it. Rename it.") from None
    return text
