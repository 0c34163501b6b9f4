"""The report of an evaluation: one self-contained HTML page without scripts and network access."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from valuefit import __version__
from valuefit.atomic import check_target, write_bytes
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.notes import longer_notes
from valuefit.evaluation.text import estimate_cells, following_sentence, number, verdict_sentence
from valuefit.extras import need
from valuefit.features import class_of
from valuefit.report import figures
from valuefit.report import svg as charts
from valuefit.report.figures import EpisodeStatistics, counted
from valuefit.solvers import registry
from valuefit.solvers.solver import settings

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(evaluation: Evaluation, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the report of an evaluation to `path` and return the path; an existing file needs `force=True`.

    One HTML file that contains its charts and loads no other files; text from the log is escaped. Needs jinja2:
    pip install 'valuefit[plot]'.
    """
    return write_page(path, lambda: render(evaluation), force=force)


def write_page(path: str | os.PathLike[str], page: Callable[[], str], *, force: bool) -> Path:
    """Write the page that this function returns, which is not called where the path cannot be written."""
    path = Path(path)
    check_target(path, force=force)
    return write_bytes(path, page().encode(), force=force)


def render(evaluation: Evaluation) -> str:
    """The page as HTML text."""
    return fill_template("report.html", contents(evaluation))


def fill_template(name: str, variables: dict[str, Any]) -> str:
    """A template of this package as HTML text, with the style sheet and the security policy of the pages."""
    jinja2 = need("jinja2", "plot", "A report")
    folder = files("valuefit.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_printable,
        loader=jinja2.FunctionLoader(lambda template: (folder / template).read_text(encoding="utf-8")),
    )  # fmt: skip
    markup = need("markupsafe", "plot", "A report").Markup

    def code(text: str) -> Any:
        """A message as HTML: what stands between backticks is code."""
        pieces = [markup.escape(charts.printable(piece)) for piece in text.split("`")]
        coded = [piece if index % 2 == 0 else f"<code>{piece}</code>" for index, piece in enumerate(pieces)]
        return markup("").join(map(markup, coded))

    environment.filters["code"] = code
    template = environment.get_template(name)
    # not escaped: the style sheet is part of the package
    style = markup((folder / "report.css").read_text(encoding="utf-8"))
    page: str = template.render(
        style=style, version=__version__, content_security_policy=CONTENT_SECURITY_POLICY, **variables
    )
    return page


def _printable(value: Any) -> Any:
    return charts.printable(value) if type(value) is str else value  # not for Markup, a subclass of str


def contents(evaluation: Evaluation) -> dict[str, Any]:
    """The variables of the template: text, table rows and figures."""
    log, value, facts = evaluation.log, evaluation.policy_value, evaluation.to_dict()
    statistics = EpisodeStatistics.of(log, evaluation.discount)
    source = log.source or "a log in memory"
    off_policy = value.effective_sample_size is not None
    return {
        "source": source,
        "title": source if len(source) <= 60 else f"…{source[-59:]}",
        "value": value,
        "number": number,
        "level": f"{100 * value.level:g}%",
        "discount": f"{evaluation.discount:g}",
        "estimate": number(value.estimate),
        "error": None if value.standard_error is None else number(value.standard_error),
        "interval": None if value.interval is None else [number(end) for end in value.interval],
        "interval_chart": _interval_chart(evaluation),
        "key_numbers": _key_numbers(evaluation),
        "method": _method_rows(evaluation),
        "solver": evaluation.result.solver,
        "converged": evaluation.result.status == "converged",
        "value_figures": figures.value_figures(evaluation),
        "td_figures": figures.td_figures(evaluation),
        "convergence_figures": figures.convergence_figures(evaluation),
        "data": _data_rows(evaluation, statistics),
        "data_figures": figures.data_figures(log, statistics),
        "columns": _column_rows(evaluation),
        "column_count": len(figures.observation_names(log)),
        "ratios": _ratio_rows(evaluation) if off_policy else [],
        "ratio_figures": figures.ratio_figures(log.ratio) if off_policy else [],
        "cross_checks": evaluation.cross_checks,
        "weights": [(entry["name"], *estimate_cells(entry)) for entry in facts["weights"] or []],
        "longer_notes": " ".join(longer_notes(value.bias, value.unseen)),
        "verdict": evaluation.verdict,
        "verdict_sentence": verdict_sentence(facts),
        "following": following_sentence(facts) if evaluation.follows else "",
        "checks": _check_rows(evaluation),
        "notes": evaluation.notes,
        "call": python_call(evaluation),
    }


def _interval_chart(evaluation: Evaluation) -> str:
    value = evaluation.policy_value
    if value.interval is None or value.interval[0] == value.interval[1]:
        return ""
    low, high = value.interval
    desc = f"A dot at {number(value.estimate)} on a line from {number(low)} to {number(high)}."
    label = f"policy value, with its {100 * value.level:g}% interval"
    title = "The policy value and its interval"
    return charts.interval("answer", title, desc, value.estimate, low, high, x_label=label)


def _key_numbers(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The numbers that are shown next to the answer."""
    value = evaluation.policy_value
    entries = [
        ("steps", f"{evaluation.size[0]:,}"),
        ("episodes", f"{evaluation.size[1]:,}"),
        ("features", f"{evaluation.problem.d:,}"),
        ("discount", f"{evaluation.discount:g}"),
    ]
    if value.effective_sample_size is not None:
        entries.insert(1, ("effective steps", f"{value.effective_sample_size:,.0f}"))
    return entries


def _method_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The table of data, settings and solver."""
    log, result = evaluation.log, evaluation.result
    horizon = "infinite" if evaluation.discount == 1 else f"about {1 / (1 - evaluation.discount):.3g} steps"
    on_policy = evaluation.policy_value.effective_sample_size is None
    unnamed = "the policy that generated the log" if on_policy else "the target policy of the ratios in the log"
    rows = [
        ("Data", log.source or "a log in memory"),
        ("Policy", unnamed if evaluation.policy is None else evaluation.policy.name),
        ("Values of", "states" if evaluation.values == "state" else "states and actions"),
        ("Features", f"{evaluation.problem.d:,}, {len(evaluation.problem.dead):,} of them without data. "
                     f"{evaluation.features.sentence}"),
        ("Discount", f"{evaluation.discount:g} (horizon {horizon})"),
        ("Trace", f"{evaluation.trace:g}"),
        ("Ridge", f"{evaluation.ridge:g}"),
        ("Solver", result.solver),
        ("Status", f"{result.status}. {result.message}"),
        ("Effort", f"{result.passes:.1f} passes over the log, {result.seconds:.2f} seconds"),
        ("Accuracy", f"gap {'unknown' if result.gap is None else f'at most {result.gap:.1e}'} "
                     f"(requested: {result.tol}), residual {result.residual:.1e}"),
        ("Seed", str(evaluation.seed)),
    ]  # fmt: skip
    changed = _non_default_settings(evaluation)
    if changed:
        rows.insert(8, ("Solver settings", ", ".join(f"{name} = {value}" for name, value in changed.items())))
    return rows


def _check_rows(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """Outcome, name, statistic, p-value, size and message of each check."""
    return [
        (check.outcome, check.name, *(number(value, "") for value in (check.statistic, check.p_value, check.size)),
         check.message)
        for check in evaluation.checks
    ]  # fmt: skip


def _data_rows(evaluation: Evaluation, statistics: EpisodeStatistics) -> list[tuple[str, str]]:
    log = evaluation.log
    lengths, returns, terminated = statistics.lengths, statistics.returns, statistics.terminated
    episodes = len(lengths)
    size = evaluation.size
    sample = f", a sample of {size[0]:,} in {counted(size[1], 'episode')}" if evaluation.sampled else ""
    rows = [
        ("Steps", f"{len(log):,}{sample}"),
        ("Episodes", f"{episodes:,}: {terminated:,} terminated, {episodes - terminated:,} truncated"),
        ("Steps per episode", f"{lengths.min():,} to {lengths.max():,}, mean {number(float(lengths.mean()))}"),
        ("Reward", _range_text(log.reward)),
        ("Discounted return of the logged episodes", _range_text(returns)),
        ("Observation", "a state number" if log.has_numbered_states
         else f"{' x '.join(map(str, log.observations.shape[1:])) or '1'} numbers"),
    ]  # fmt: skip
    if episodes > 1:
        error = float(returns.std(ddof=1)) / episodes**0.5
        rows[4] = (rows[4][0], f"{rows[4][1]}, standard error of the mean {number(error)}")
    return rows


def _range_text(values: Any) -> str:
    low, high = float(values.min()), float(values.max())
    return (
        f"always {number(low)}"
        if low == high
        else f"{number(low)} to {number(high)}, mean {number(float(values.mean()))}"
    )


def _column_rows(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """Name, minimum, mean and maximum of the first 100 numbers of an observation."""
    if evaluation.log.has_numbered_states:
        return []
    observations = evaluation.log.observations
    flat = observations.reshape(len(observations), -1)[:, :100]
    low, mean, high = flat.min(axis=0), flat.mean(axis=0, dtype=float), flat.max(axis=0)
    names = figures.observation_names(evaluation.log)
    return [(name, *map(number, row)) for name, *row in zip(names, low, mean, high, strict=False)]


def _ratio_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    ratio, size = evaluation.log.ratio, evaluation.policy_value.effective_sample_size or 0.0
    steps = evaluation.size[0]
    return [
        ("Effective sample size", f"{number(size)} of {counted(steps, 'step')} ({size / steps:.1%})"),
        ("Mean ratio (close to 1 if the probabilities are correct)", number(float(ratio.mean()))),
        ("Largest ratio", number(float(ratio.max()))),
        ("Steps with ratio 0", f"{int((ratio == 0).sum()):,}"),
    ]


# ---- the call that reproduces the evaluation ---------------------------------------------------------------------


def _non_default_settings(evaluation: Evaluation) -> dict[str, Any]:
    """Settings of the solver that differ from its defaults."""
    solver = registry().get(evaluation.result.solver)
    defaults = {} if solver is None else settings(solver())
    return {name: value for name, value in evaluation.result.settings.items() if value != defaults.get(name)}


def python_call(evaluation: Evaluation) -> str:
    """The call of `evaluate` that reproduces this evaluation, without arguments that it does not store."""
    log, result = evaluation.log, evaluation.result
    is_file = log.source not in ("", "the dict", "the table")
    solver = registry().get(result.solver)
    changed = {
        name: float(value) if value == "inf" else value for name, value in _non_default_settings(evaluation).items()
    }
    options = ", ".join(
        f'{name}=float("inf")' if value == float("inf") else f"{name}={value!r}" for name, value in changed.items()
    )
    solver_text = f"vf.solvers.{solver.__name__}({options})" if solver is not None and changed else repr(result.solver)
    arguments = [
        ("", repr(log.source) if is_file else "log", "" if is_file else "the same log"),
        ("features", *_features_text(evaluation)),
        ("discount", repr(evaluation.discount), ""),
        ("trace", repr(evaluation.trace), ""),
        ("ridge", repr(evaluation.ridge), ""),
        ("values", repr(evaluation.values), ""),
        ("solver", solver_text, ""),
        ("tol", repr(result.tol), ""),
        ("seed", repr(evaluation.seed), ""),
    ]
    if evaluation.policy is not None:
        arguments.insert(2, ("policy", "policy", f"the same policy: {evaluation.policy.name!r}"))
    lines = ["import valuefit as vf", "", "evaluation = vf.evaluate("]
    for name, text, comment in arguments:
        lines.append(f"    {name + '=' if name else ''}{text},{'  # ' + comment if comment else ''}")
    return "\n".join([*lines, ")"])


def _features_text(evaluation: Evaluation) -> tuple[str, str]:
    """The features as code, and a comment."""
    spec = evaluation.features.spec
    if spec is None:
        return "features", f"your own: {evaluation.features.sentence!r}"
    fitted = {name: repr(value) for name, value in spec["options"].items()}
    most = 400  # characters; longer options, such as fitted centres, are left out
    long = {name for name, text in fitted.items() if len(text) > most}
    # an option that was fitted, such as 1,000 landmarks, is printed as it was given: their number
    options = {name: repr(getattr(evaluation.features.transformer, name)) if name in long else text
               for name, text in fitted.items()}  # fmt: skip
    short = {name: text for name, text in options.items() if len(text) <= most and text != "None"}
    comment = "other options are fitted to the log" if long else ""
    arguments = ", ".join(f"{name}={text}" for name, text in short.items())
    return f"vf.features.{class_of(spec['name']).__name__}({arguments})", comment
