"""Settings of `evaluate` and `compare`: merged from the command line and a TOML file, and written to a TOML file."""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from valuefit import __version__
from valuefit.messages import shown

MAX_CONFIG_BYTES = 1 << 20  # far above any real file of options; guards against reading a log by mistake
MAX_SEED = 2**63 - 1
# Endings of policies that are files; any other policy is "module:function". A copy of `evaluation.policy.FILES`, which
# cannot be imported here without numpy.
POLICY_FILES = (".npy", ".csv", ".txt")


OUTPUTS = ("report", "save")  # not written to a file, as the run that it repeats has made them


@dataclass(frozen=True)
class Settings:
    """Every option with its default; None if the option has no value. Several policies are for `compare` alone."""

    log: str | list[str] | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    features: str = "auto"
    discount: float = 0.99
    policy: str | list[str] | None = None
    values: str = "state"
    trace: float = 0.0
    ridge: float = 0.0
    interval: str = "cr3"
    level: float = 0.95
    reward_range: tuple[float, float] | None = None
    cluster: str | None = None
    starts: str | None = None
    solver: str = "auto"
    tol: float | Literal["statistical"] = "statistical"
    max_passes: float = 500.0
    seed: int = 0
    missing: str = "refuse"
    memory: str = "auto"
    limit: str | int | None = None
    scheduler: str | None = None
    checkpoint: str | None = None
    device: str | None = None
    checks: str = "standard"
    strict: bool = False
    report: str | None = None
    save: str | None = None
    json: bool = False
    quiet: bool = False
    force: bool = False

    def logs(self) -> list[str]:
        """The paths of the log."""
        return as_list(self.log)

    def policies(self) -> list[str]:
        """The policies that are given."""
        return as_list(self.policy)


def as_list(value: str | list[str] | None) -> list[str]:
    """Texts of an option that takes none, one or several."""
    return [] if value is None else [value] if isinstance(value, str) else value


PATH_OPTIONS = ("log", "policy", "starts", "checkpoint", "report", "save")
CHOICES = {
    "values": ("state", "state-action"),
    "interval": ("cr3", "cr1"),
    "missing": ("refuse", "flag"),
    "memory": ("auto", "stream"),
    "checks": ("standard", "all"),
}


def default_of(name: str) -> Any:
    """The default of an option, for its help text."""
    found = next(one for one in fields(Settings) if one.name == name)
    return None if found.default is MISSING else found.default


def merge(given: dict[str, Any], config: str | None) -> Settings:
    """The settings of a run: the command line overrides the file, the file overrides the defaults.

    given: options by name, None if absent from the command line. config: path of a TOML file, or None. A policy that
    is code, and `force`, are accepted from the file only if the command line repeats them.
    """
    from_command_line = {name: value for name, value in given.items() if value is not None}
    from_file = {} if config is None else read_config(Path(config))
    policies = as_list(from_file.get("policy"))
    code = [policy for policy in policies if is_code(policy)]
    if code and "policy" not in from_command_line:
        raise ValueError(
            f"{config} sets the policy {code[0]!r}, which is code, and a file may not run code. If you trust it, "
            f"repeat it on the command line: {' '.join(f'--policy {policy}' for policy in policies)}"
        )
    if from_file.get("force") and not from_command_line.get("force"):
        raise ValueError(
            f"{config} sets force, but a file may not allow overwriting. Repeat it on the command line: --force"
        )
    columns = {**from_file.get("columns", {}), **from_command_line.get("columns", {})}
    return Settings(**{**from_file, **from_command_line, "columns": columns})


def is_code(policy: str) -> bool:
    """Whether this policy is "module:function", which would be imported."""
    return ":" in policy and Path(policy).suffix.lower() not in POLICY_FILES


# ---- reading ------------------------------------------------------------------------------------------------


def read_config(path: Path) -> dict[str, Any]:
    """Options by name from a TOML file, validated; relative paths are relative to the folder of the file."""
    import tomllib

    if not path.is_file():
        raise ValueError(f"There is no file {str(path)!r}.")
    with open(path, "rb") as stream:
        data = stream.read(MAX_CONFIG_BYTES + 1)
    if len(data) > MAX_CONFIG_BYTES:
        raise ValueError(f"{path} is larger than {MAX_CONFIG_BYTES:,} bytes, the limit for a file of options.")
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    options = {}
    known = [one.name.replace("_", "-") for one in fields(Settings)]
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The known keys are {', '.join(known)}."
            raise ValueError(f"{path} has the key {shown(key)}, which is no option of valuefit evaluate. {hint}")
        name = name.replace("-", "_")
        if name in options:
            raise ValueError(f"{path} sets {key!r} twice, once with a dash and once with an underscore.")
        options[name] = _validate(path, name, value)
    for name in PATH_OPTIONS:
        if name in options:
            options[name] = _relocated(name, options[name], lambda one: os.path.relpath(os.path.join(path.parent, one)))
    return options


def _validate(path: Path, name: str, value: Any) -> Any:
    """The value with the type of its option, or a ValueError that names the file, the key and the expected type."""
    kind = next(one.type for one in fields(Settings) if one.name == name)  # as it is written
    is_number = type(value) in (int, float) and (abs(value) <= sys.float_info.max or abs(value) == math.inf)
    if name == "columns":
        return _validate_columns(path, value)
    if kind == "bool":
        valid, expected = isinstance(value, bool), "true or false"
    elif kind == "int":
        valid, expected = type(value) is int and value <= MAX_SEED, "a whole number below 2^63"
    elif kind == "float":
        valid, expected = is_number, "a number"
    elif name == "tol":
        valid, expected = is_number or value == "statistical", 'a number or "statistical"'
    elif name == "reward_range":
        valid = isinstance(value, list) and len(value) == 2 and all(type(end) in (int, float) for end in value)
        expected = "two numbers, as in [0, 1]"
    elif name in ("log", "policy"):
        paths = value if isinstance(value, list) and value else [value]
        valid, expected = all(_may_be_path(one) for one in paths), "text in quotes, or a list of such texts"
    elif name == "limit":
        valid, expected = _may_be_path(value) or type(value) is int, 'a number of bytes, or text such as "2GB"'
    elif name in CHOICES:
        valid, expected = value in CHOICES[name], " or ".join(f'"{word}"' for word in CHOICES[name])
    else:
        valid, expected = _may_be_path(value), "text in quotes"
    if not valid:
        raise ValueError(f"{path} sets {name.replace('_', '-')} = {shown(value)}; it must be {expected}.")
    return float(value) if kind == "float" or (name == "tol" and is_number) else value


def _may_be_path(value: Any) -> bool:
    """Whether a value is text that may be a path."""
    return isinstance(value, str) and "\0" not in value


def _validate_columns(path: Path, value: Any) -> dict[str, Any]:
    """valuefit's column names -> names in the log; "" becomes None (the column is not used), as TOML has no null."""
    valid = isinstance(value, dict)
    for theirs in value.values() if valid else ():
        names = theirs if isinstance(theirs, list) else [theirs]
        valid &= bool(names) and all(isinstance(name, str) for name in names)
    if not valid:
        raise ValueError(
            f"{path} sets columns = {shown(value)}; it must be a table of names, as in "
            'columns = { reward = "r", obs = ["x", "v"] }.'
        )
    return {ours: theirs or None for ours, theirs in value.items()}


def _relocated(name: str, value: str | list[str], move: Callable[[str], str]) -> str | list[str]:
    """The path or paths of an option, relative ones relative to another folder."""
    paths = [move(path) if _is_relative_path(name, path) else path for path in as_list(value)]
    return paths[0] if isinstance(value, str) else paths


def _is_relative_path(name: str, value: str) -> bool:
    """Whether the value is a path that depends on the folder; "minari:ID", a URL and "module:function" are not."""
    if name == "policy" and Path(value).suffix.lower() not in POLICY_FILES:
        return False
    if name == "log" and (value.startswith("minari:") or "://" in value):
        return False
    return not os.path.isabs(value)


# ---- writing ------------------------------------------------------------------------------------------------


def config_text(settings: Settings, folder: Path) -> str:
    """The TOML text of a file in `folder` that repeats a run: every setting that affects the result, with defaults,
    and none of the files that the run wrote."""
    import tomli_w

    lines = [f"# Written by valuefit {__version__}; the same command with --config FILE runs it again."]
    lines += ["# Give --report or --save again to write files."] * any(getattr(settings, name) for name in OUTPUTS)
    if settings.log is None:
        lines.append("# No log is named, so the example log of valuefit is used.")
    if any(map(is_code, settings.policies())):
        lines.append("# A policy is code, so --policy must be repeated on the command line: --policy module:function")
    options: dict[str, Any] = {}
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.type == "bool" or one.name in OUTPUTS or value is None or value == {}:  # they do not affect the result
            continue
        if one.name == "columns":  # TOML has no null
            value = {ours: theirs or "" for ours, theirs in value.items()}
        elif one.name in PATH_OPTIONS:
            value = _relocated(one.name, value, lambda path: os.path.relpath(path, folder))
        options[one.name.replace("_", "-")] = value
    text = "\n".join(lines) + "\n" + tomli_w.dumps(options)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text[text.rfind("\n", 0, error.start) + 1 : text.find("\n", error.start)]
        raise ValueError(f"The name in {line!r} is not valid UTF-8, which TOML requires. Rename it.") from None
    return text
