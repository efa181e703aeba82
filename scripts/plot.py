#!/usr/bin/python3
"""Draws the loss of one or several runs against step, tokens and wall clock; runs of Local-SGD against
local steps, virtual time and bytes.

    scripts/plot.py OUT... [-o FILE.png]      OUT: a run's directory, or its log.jsonl
    scripts/plot.py --schedule OUT [-o FILE.png]      of Local-SGD: who did what when, and staleness

Light lines are the training loss of each step (Local-SGD: of each round), strong ones its moving
average, points the validation loss. One run is drawn to OUT/loss.png, several to ./loss.png, a schedule
to OUT/schedule.png. Needs no display.
"""
import argparse
import bisect
import json
import math
import os
import sys


def fail(message):
    sys.exit(f"plot.py: {message}")


try:
    import matplotlib
except ImportError:
    fail("matplotlib is missing: scripts/install_deps.sh quickstart")
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)

SERIES = ("step", "tokens", "time", "t_virtual", "bytes", "loss")
# field of the log, factor to the axis' unit, axis label
PANELS = (
    ("step", 1, "step"),
    ("tokens", 1e-6, "tokens (millions)"),
    ("time", 1 / 60, "wall clock (min)"),
)
LOCAL_SGD_PANELS = (
    ("step", 1, "local steps of all workers"),
    ("t_virtual", 1, "virtual time (s)"),
    ("bytes", 1e-6, "pushed and pulled (MB)"),
)


def log_of(path):
    return os.path.join(path, "log.jsonl") if os.path.isdir(path) else path


def records_of(log):
    """The records of a log, as far as its lines are complete."""
    try:
        lines = open(log, encoding="utf-8", errors="replace").read().split("\n")
    except OSError as error:
        fail(f"{log}: cannot read the log: {error.strerror}")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines):  # no line feed yet: being written, or cut by a crash
                continue
            fail(f"{log}:{number}: not a line of JSON")
        if isinstance(record, dict):
            yield record


def read_log(path):
    """{"train": {"step": [...], ...}, "eval": ...} from the lines that are finite."""
    log = log_of(path)
    runs = {kind: {key: [] for key in SERIES} for kind in ("train", "eval")}
    round_lines, moved = [], 0  # of Local-SGD: steps of the push that follows; bytes so far
    for record in records_of(log):
        kind = record.get("kind")
        if kind == "train" and "round" in record:
            round_lines.append(record)
            continue
        if kind == "push":
            moved += record["bytes_up"] + record["bytes_down"]
            losses = [to_float(line["loss"]) for line in round_lines] or [math.nan]
            tokens = round_lines[-1]["tokens"] if round_lines else math.nan
            kind, round_lines = "train", []
            record.update(loss=sum(losses) / len(losses), bytes=moved, tokens=tokens)
        if kind not in runs:
            continue
        values = [to_float(record.get(key)) for key in SERIES]
        if math.isfinite(values[0]) and math.isfinite(values[-1]):
            for key, value in zip(SERIES, values):
                runs[kind][key].append(value)
    if not runs["train"]["loss"] and not runs["eval"]["loss"]:
        fail(f'{log}: expected "train" or "eval" records with a finite loss, found none')
    place_evaluations(runs)
    return runs


def to_float(value):
    try:
        return float(value)  # also of "nan", "inf", "-inf", as the log spells them
    except (TypeError, ValueError):
        return math.nan


def place_evaluations(runs):
    """Where validation points stand on the axes: behind the training step they follow. Their own
    "tokens" are those of the evaluation, and a "time" need not be there."""
    train, evals = runs["train"], runs["eval"]
    for i, step in enumerate(evals["step"] if train["step"] else []):
        before = bisect.bisect_right(train["step"], step) - 1
        for key in ("tokens", "time", "t_virtual", "bytes"):
            if key != "time" or not math.isfinite(evals[key][i]):
                evals[key][i] = train[key][before] if before >= 0 else 0.0


def smooth(values, window):
    """Mean over `window` neighbours on both sides together, fewer at the ends."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    half = window // 2
    bounds = ((max(0, i - half), min(len(values), i + half + 1)) for i in range(len(values)))
    return [(sums[last] - sums[first]) / (last - first) for first, last in bounds]


def percentile(values, share):
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def loss_limits(runs):
    """The bulk of all losses: the steep first steps and lone spikes may leave the picture."""
    low, high = math.inf, -math.inf
    for run in runs:
        for losses, least in ((run["train"]["loss"], 0.002), (run["eval"]["loss"], 0.0)):
            if losses:
                low, high = min(low, percentile(losses, least)), max(high, percentile(losses, 0.93))
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def draw(axes, panels, runs, names):
    colors = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    for index, (run, name) in enumerate(zip(runs, names)):
        color = colors[index % len(colors)]
        train, evals = run["train"], run["eval"]
        window = max(1, len(train["loss"]) // 50)
        smoothed = smooth(train["loss"], window)
        for axis, (key, unit, _) in zip(axes, panels):
            x = [value * unit for value in train[key]]
            if window > 1:
                axis.plot(x, train["loss"], color=color, alpha=0.22, linewidth=0.7)
            axis.plot(x, smoothed, color=color, linewidth=1.6, label=f"{name}: training")
            if evals["loss"]:
                axis.plot([value * unit for value in evals[key]], evals["loss"], "o", color=color,
                          markersize=5, markeredgecolor="white", markeredgewidth=0.7,
                          label=f"{name}: validation")


def plot(runs, names, output):
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.6), sharey=True, layout="constrained")
    times = [value for run in runs for value in run["train"]["t_virtual"]]  # a plain run has none
    local = bool(times) and all(math.isfinite(value) for value in times)
    panels = LOCAL_SGD_PANELS if local else PANELS
    draw(axes, panels, runs, names)
    for axis, (_, _, label) in zip(axes, panels):
        axis.set_xlabel(label)
        axis.margins(x=0.02)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("loss (nats/token)")
    axes[0].set_ylim(*loss_limits(runs))
    handles, labels = axes[0].get_legend_handles_labels()
    if len(names) <= 3:
        axes[-1].legend(handles, labels, edgecolor="none", loc="upper right")  # may lie over curves
    else:
        figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=4)
    save(figure, output)


def save(figure, output):
    try:
        figure.savefig(output, dpi=130)
    except (OSError, ValueError) as error:
        fail(f"{output}: cannot write the picture: {error}")


def plot_schedule(path, output):
    """The first rounds as bars, one row a worker, and how stale pushes were."""
    pushes = [record for record in records_of(log_of(path)) if record.get("kind") == "push"]
    if not pushes:
        fail(f'{log_of(path)}: expected "push" records of Local-SGD, found none')
    workers = 1 + max(push["worker"] for push in pushes)
    shown = pushes[:10 * workers]
    figure, (timeline, histogram) = plt.subplots(
        1, 2, figsize=(13, 1.6 + 0.45 * min(workers, 16)), width_ratios=(3, 1), layout="constrained")
    parts = (("pull", "t_start", "t_pulled", "C2"), ("compute", "t_pulled", "t_computed", "C0"),
             ("push", "t_computed", "t_virtual", "C1"))
    for name, begin, end, color in parts:
        timeline.barh([push["worker"] for push in shown], [push[end] - push[begin] for push in shown],
                      left=[push[begin] for push in shown], height=0.7, color=color, edgecolor="white",
                      linewidth=0.6, label=name)
    for push in shown:
        timeline.plot([push["t_virtual"]] * 2, [push["worker"] - 0.45, push["worker"] + 0.45],
                      color="black" if push["accepted"] else "red", linewidth=1.2)
    timeline.set_xlabel("virtual time (s); black: the server applies, red: it refuses")
    timeline.set_yticks(range(workers), [f"worker {worker}" for worker in range(workers)])
    timeline.invert_yaxis()
    if any(push["t_computed"] - push["t_pulled"] < push["t_virtual"] - push["t_start"] for push in shown):
        timeline.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    stale = [push["staleness"] for push in pushes]
    histogram.bar(range(max(stale) + 1), [stale.count(value) for value in range(max(stale) + 1)], color="C0")
    histogram.xaxis.get_major_locator().set_params(integer=True)
    histogram.set_xlabel(f"staleness of {len(pushes)} pushes (mean {sum(stale) / len(stale):.2f})")
    for axis in (timeline, histogram):
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, output)


def run_names(paths):
    """The directories' names, or the whole paths where those repeat."""
    absolute = [os.path.abspath(path) for path in paths]
    directories = [path if os.path.isdir(path) else os.path.dirname(path) for path in absolute]
    names = [os.path.basename(directory) for directory in directories]
    return names if len(set(names)) == len(names) else list(paths)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="+", metavar="OUT", help="a run's directory, or its log.jsonl")
    parser.add_argument("-o", "--output", metavar="FILE.png")
    parser.add_argument("--schedule", action="store_true", help="draw the schedule of one run of Local-SGD")
    options = parser.parse_args()
    output = options.output
    if options.schedule and len(options.out) > 1:
        fail("--schedule draws one run at a time")
    if output is None:
        first = options.out[0]
        directory = first if os.path.isdir(first) else os.path.dirname(first)
        output = os.path.join(directory if len(options.out) == 1 else "",
                              "schedule.png" if options.schedule else "loss.png")
    if options.schedule:
        plot_schedule(options.out[0], output)
    else:
        plot([read_log(path) for path in options.out], run_names(options.out), output)
    print(output)


if __name__ == "__main__":
    main()
