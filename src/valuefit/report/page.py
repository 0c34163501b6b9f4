"""An evaluation as one self-contained HTML page: no script, no network, light and dark, for screens and paper."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from valuefit import __version__
from valuefit.atomic import refuse_existing, write_bytes
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.text import number
from valuefit.extras import need
from valuefit.features.registry import BUILT_IN
from valuefit.report import figures as views
from valuefit.report import svg as charts
from valuefit.report.figures import Overview, count
from valuefit.solvers import registry
from valuefit.solvers.solver import settings

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SHORT = 60  # letters of a source that the title of the page takes
MOST_COLUMNS = 100  # of the observations that are listed
LONG_OPTION = 400  # letters, from which on a learned option is left to be learned again


def write_report(
    evaluation: Evaluation, path: str | os.PathLike[str], *, force: bool = False, repeat: str = ""
) -> Path:
    """Write the report of an evaluation to `path` and return it; nothing is overwritten without `force`.

    One HTML file with its charts inside; it loads nothing, and text of the log is escaped. repeat: the settings (TOML)
    that repeat the run, shown beside the Python call. Needs jinja2: pip install 'valuefit[plot]'.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {str(path.parent)!r} to write into. Make it first.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Name a file, such as {path / 'report.html'}.")
    refuse_existing(path, force=force)
    return write_bytes(path, render(evaluation, repeat=repeat).encode())


def render(evaluation: Evaluation, *, repeat: str = "") -> str:
    """The page as text."""
    jinja2 = need("jinja2", "plot", "A report")
    home = files("valuefit.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_printable,
    )  # fmt: skip
    template = environment.from_string((home / "report.html").read_text(encoding="utf-8"))
    # our own text, and trees that escaped what they were given
    style = need("markupsafe", "plot", "A report").Markup((home / "report.css").read_text(encoding="utf-8"))
    page: str = template.render(style=style, **contents(evaluation, repeat=repeat))
    return page


def _printable(value: Any) -> Any:
    return charts.printable(value) if type(value) is str else value  # Markup is a class of its own


def contents(evaluation: Evaluation, *, repeat: str) -> dict[str, Any]:
    """All that the page says, as text, rows and charts."""
    log, value = evaluation.log, evaluation.policy_value
    overview = Overview.of(log, evaluation.discount)
    source = log.source or "a log in memory"
    off_policy = value.effective_sample_size is not None
    return {
        "version": __version__,
        "policy": POLICY,
        "source": source,
        "title": source if len(source) <= SHORT else "…" + source[1 - SHORT :],
        "value": value,
        "number": number,
        "level": f"{100 * value.level:g}%",
        "discount": f"{evaluation.discount:g}",
        "estimate": number(value.estimate),
        "error": None if value.standard_error is None else number(value.standard_error),
        "interval": None if value.interval is None else [number(end) for end in value.interval],
        "interval_chart": _interval(evaluation),
        "facts": _facts(evaluation),
        "how": _how(evaluation),
        "solver": evaluation.result.solver,
        "converged": evaluation.result.status == "converged",
        "value_figures": views.value_figures(evaluation),
        "td_figures": views.td_figures(evaluation),
        "convergence_figures": views.convergence_figures(evaluation),
        "data": _data(evaluation, overview),
        "data_figures": views.data_figures(log, overview),
        "columns": _columns(evaluation),
        "column_count": len(views.observation_names(log)),
        "ratios": _ratios(evaluation) if off_policy else [],
        "ratio_figures": views.ratio_figures(log.ratio) if off_policy else [],
        "weights": evaluation.weights or [],
        "warnings": evaluation.warnings,
        "notes": evaluation.notes,
        "call": python_call(evaluation),
        "repeat": repeat,
    }


def _interval(evaluation: Evaluation) -> str:
    value = evaluation.policy_value
    if value.interval is None or value.interval[0] == value.interval[1]:
        return ""
    low, high = value.interval
    desc = f"A dot at {number(value.estimate)} on a line from {number(low)} to {number(high)}."
    label = f"policy value, with its {100 * value.level:g}% interval"
    return charts.interval(
        "answer", "The policy value and its interval", desc, value.estimate, low, high, x_label=label
    )


def _facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The few numbers that stand beside the answer."""
    value = evaluation.policy_value
    facts = [
        ("steps", f"{len(evaluation.log):,}"),
        ("episodes", f"{len(evaluation.log.episodes):,}"),
        ("features", f"{evaluation.problem.d:,}"),
        ("discount", f"{evaluation.discount:g}"),
    ]
    if value.effective_sample_size is not None:
        facts.insert(1, ("effective steps", f"{value.effective_sample_size:,.0f}"))
    return facts


def _how(evaluation: Evaluation) -> list[tuple[str, str]]:
    """How the answer was obtained, row by row."""
    log, result = evaluation.log, evaluation.result
    horizon = (
        "no horizon" if evaluation.discount == 1 else f"looks ahead about {1 / (1 - evaluation.discount):.3g} steps"
    )
    acted = (
        "the one that acted" if evaluation.policy_value.effective_sample_size is None else "the one of the log's ratios"
    )
    rows = [
        ("Data", log.source or "a log in memory"),
        ("Policy", acted if evaluation.policy is None else evaluation.policy.name),
        ("Values of", "states" if evaluation.values == "state" else "states and actions"),
        ("Features", f"{evaluation.problem.d:,}, {len(evaluation.problem.dead):,} of them without data. "
                     f"{evaluation.features.sentence}"),
        ("Discount", f"{evaluation.discount:g} ({horizon})"),
        ("Trace", f"{evaluation.trace:g}"),
        ("Ridge", f"{evaluation.ridge:g}"),
        ("Solver", result.solver),
        ("Status", f"{result.status}. {result.message}"),
        ("Effort", f"{result.passes:.1f} passes over the log, {result.seconds:.2f} seconds"),
        ("Accuracy", f"gap {'unknown' if result.gap is None else f'at most {result.gap:.1e}'} "
                     f"(asked: {result.tol}), residual {result.residual:.1e}"),
        ("Seed", str(evaluation.seed)),
    ]  # fmt: skip
    chosen = _chosen_settings(evaluation)
    if chosen:
        rows.insert(8, ("Solver settings", ", ".join(f"{name} = {value}" for name, value in chosen.items())))
    return rows


def _data(evaluation: Evaluation, overview: Overview) -> list[tuple[str, str]]:
    log = evaluation.log
    episodes, lengths, returns = len(overview.lengths), overview.lengths, overview.returns
    rows = [
        ("Steps", f"{len(log):,}"),
        ("Episodes", f"{episodes:,}: {overview.terminated:,} terminated, {episodes - overview.terminated:,} cut off"),
        ("Steps an episode", f"{lengths.min():,} to {lengths.max():,}, mean {number(float(lengths.mean()))}"),
        ("Reward", _range(log.reward)),
        ("Discounted return as logged", _range(returns)),
        ("Observation", "a state by number" if log.has_numbered_states
         else f"{' x '.join(map(str, log.observations.shape[1:])) or '1'} numbers"),
    ]  # fmt: skip
    if episodes > 1:
        error = float(returns.std(ddof=1)) / episodes**0.5
        rows[4] = (rows[4][0], f"{rows[4][1]}, standard error of the mean {number(error)}")
    return rows


def _range(values: Any) -> str:
    low, high = float(values.min()), float(values.max())
    return (
        f"always {number(low)}"
        if low == high
        else f"{number(low)} to {number(high)}, mean {number(float(values.mean()))}"
    )


def _columns(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """Name, least, mean and largest of each number of an observation, for the first hundred."""
    if evaluation.log.has_numbered_states:
        return []
    observations = evaluation.log.observations
    flat = observations.reshape(len(observations), -1)[:, :MOST_COLUMNS]
    low, mean, high = flat.min(axis=0), flat.mean(axis=0, dtype=float), flat.max(axis=0)
    names = views.observation_names(evaluation.log)
    return [(name, *map(number, row)) for name, *row in zip(names, low, mean, high, strict=False)]


def _ratios(evaluation: Evaluation) -> list[tuple[str, str]]:
    ratio, size = evaluation.log.ratio, evaluation.policy_value.effective_sample_size or 0.0
    return [
        ("Effective sample size", f"{number(size)} of {count(len(ratio), 'step')} ({size / len(ratio):.1%})"),
        ("Mean ratio (1 if the probabilities are right)", number(float(ratio.mean()))),
        ("Largest ratio", number(float(ratio.max()))),
        ("Steps with ratio 0", f"{int((ratio == 0).sum()):,}"),
    ]


# ---- the call that repeats it ------------------------------------------------------------------------------------


def _chosen_settings(evaluation: Evaluation) -> dict[str, Any]:
    """Settings of the solver that are not its defaults."""
    kind = registry().get(evaluation.result.solver)
    usual = {} if kind is None else settings(kind())
    return {name: value for name, value in evaluation.result.settings.items() if value != usual.get(name)}


def python_call(evaluation: Evaluation) -> str:
    """The call of `evaluate` that gives this evaluation again, as far as an evaluation remembers it."""
    log, result = evaluation.log, evaluation.result
    known = log.source not in ("", "the dict", "the table")
    kind = registry().get(result.solver)
    chosen = {name: float(value) if value == "inf" else value for name, value in _chosen_settings(evaluation).items()}
    given = ", ".join(
        f'{name}=float("inf")' if value == float("inf") else f"{name}={value!r}" for name, value in chosen.items()
    )
    arguments = [
        ("", repr(log.source) if known else "log", "" if known else "the same log"),
        ("features", *_features(evaluation)),
        ("discount", repr(evaluation.discount), ""),
        ("trace", repr(evaluation.trace), ""),
        ("ridge", repr(evaluation.ridge), ""),
        ("values", repr(evaluation.values), ""),
        ("solver", f"vf.solvers.{kind.__name__}({given})" if kind is not None and chosen else repr(result.solver), ""),
        ("tol", repr(result.tol), ""),
        ("seed", repr(evaluation.seed), ""),
    ]
    if evaluation.policy is not None:
        arguments.insert(2, ("policy", "policy", f"the same policy: {evaluation.policy.name!r}"))
    lines = ["import valuefit as vf", "", "evaluation = vf.evaluate("]
    for name, text, comment in arguments:
        lines.append(f"    {name + '=' if name else ''}{text},{'  # ' + comment if comment else ''}")
    return "\n".join([*lines, ")"])


def _features(evaluation: Evaluation) -> tuple[str, str]:
    """The features as code, and a comment."""
    spec = evaluation.features.spec
    if spec is None:
        return "features", f"your own: {evaluation.features.sentence!r}"
    options = {name: repr(value) for name, value in spec["options"].items()}
    short = {name: text for name, text in options.items() if len(text) <= LONG_OPTION}
    comment = "the rest is learned from the log" if len(short) < len(options) else ""
    inside = ", ".join(f"{name}={text}" for name, text in short.items())
    return f"vf.features.{BUILT_IN[spec['name']][1]}({inside})", comment
