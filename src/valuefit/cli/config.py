"""A file of options: read as the defaults of the options of a command, and written so that it repeats a run."""

from __future__ import annotations

import difflib
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from valuefit import __version__
from valuefit.cli.settings import Settings
from valuefit.messages import read_toml, shown

# Endings of policies that are files; any other policy is "module:function". A copy of `policies.policy.FILES`, which
# cannot be imported here without numpy.
POLICY_FILES = (".npy", ".csv", ".txt")


def settings_of(context: click.Context) -> Settings:
    """The settings of a run: the command line overrides the file, the file overrides the defaults.

    A policy that is code, and `force`, are accepted from the file only if the command line repeats them.
    """
    settings = Settings(**{one.name: context.params[one.name] for one in fields(Settings)})
    config = context.params["config"]

    def in_file(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP

    code = [policy for policy in settings.policy if is_code(policy)]
    if code and in_file("policy"):
        raise ValueError(
            f"{config} sets the policy {code[0]!r}, which is code, and a file may not run code. If you trust it, "
            f"repeat it on the command line: {' '.join(f'--policy {policy}' for policy in settings.policy)}"
        )
    if settings.force and in_file("force"):
        raise ValueError(
            f"{config} sets force, but a file may not allow overwriting. Repeat it on the command line: --force"
        )
    return settings


def is_code(policy: str) -> bool:
    """Whether this policy is "module:function", which would be imported."""
    return ":" in policy and Path(policy).suffix.lower() not in POLICY_FILES


def relocated(name: str, value: str, start: str | Path, folder: str | Path) -> str:
    """A path of this option relative to `start` as one relative to `folder`; other values as they are.

    Others are absolute paths, "minari:ID", a URL and "module:function".
    """
    is_file = (
        Path(value).suffix.lower() in POLICY_FILES
        if name == "policy"
        else name != "log" or not (value.startswith("minari:") or "://" in value)
    )
    return os.path.relpath(os.path.join(start, value), folder) if is_file and not os.path.isabs(value) else value


def read_config(context: click.Context, parameter: click.Parameter, config: str | None) -> str | None:
    """Make the options of a TOML file the defaults of this command; relative paths are relative to its folder."""
    if config is None:
        return None
    path, options = Path(config), {one.name.replace("_", "-"): one for one in fields(Settings)}
    if not path.is_file():
        raise ValueError(f"There is no file {config!r}.")
    context.default_map = {}
    for key, value in read_toml(path, "a file of options").items():
        name = key.replace("_", "-")
        if name not in options:
            near = difflib.get_close_matches(name, options, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The known keys are {', '.join(options)}."
            raise ValueError(f"{path} has the key {shown(key)}, which is no option of valuefit evaluate. {hint}")
        about = options[name]
        if about.name in context.default_map:
            raise ValueError(f"{path} sets {key!r} twice, once with a dash and once with an underscore.")
        option = next(one for one in context.command.params if one.name == about.name)
        several = option.multiple or option.nargs != 1
        given = value if isinstance(value, list) else [*value.items()] if isinstance(value, dict) else [value]
        try:
            words = [as_word(one) for one in (given if several else [value])]
            option.type_cast_value(context, words if several else words[0])
        except click.BadParameter as error:
            raise ValueError(f"{path} sets {key} = {shown(value)}: {error.message}") from None
        if about.metadata["path"]:
            words = [relocated(about.name, word, path.parent, Path()) for word in words]
        context.default_map[about.name] = words if several else words[0]
    return config


def as_word(value: Any) -> Any:
    """A value of a file as on the command line, where every option has the same type; a pair stays a pair."""
    if isinstance(value, str) and "\0" in value:
        raise click.BadParameter("the character 0 cannot be part of it.")
    return value if isinstance(value, str | tuple) else shown(value)


def config_text(settings: Settings, folder: Path) -> str:
    """The TOML text of a file in `folder` that repeats a run: every setting that affects the result, with defaults,
    and none of the files that the run wrote."""
    import tomli_w

    lines = [f"# Written by valuefit {__version__}; the same command with --config FILE runs it again."]
    lines += ["# Give --report or --save again to write files."] * bool(settings.report or settings.save)
    if not settings.log:
        lines.append("# No log is named, so the example log of valuefit is used.")
    if any(map(is_code, settings.policy)):
        lines.append("# A policy is code, so --policy must be repeated on the command line: --policy module:function")
    options: dict[str, Any] = {}
    for one in fields(Settings):
        value = getattr(settings, one.name)
        if one.metadata["output"] or value in (None, (), {}):
            continue
        if one.name == "columns":  # TOML has no null
            value = {ours: theirs or "" for ours, theirs in value.items()}
        elif one.metadata["path"]:
            paths = [
                relocated(one.name, path, Path(), folder) for path in ([value] if isinstance(value, str) else value)
            ]
            value = paths if len(paths) > 1 else paths[0]
        options[one.name.replace("_", "-")] = value
    text = "\n".join(lines) + "\n" + tomli_w.dumps(options)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text[text.rfind("\n", 0, error.start) + 1 : text.find("\n", error.start)]
        raise ValueError(f"The name in {line!r} is not valid UTF-8, which TOML requires. Rename it.") from None
    return text
