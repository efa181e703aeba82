#!/usr/bin/python3
"""What scripts/experiments/async.sh found, as a table in Markdown and two pictures.

    scripts/experiments/async_table.py DIR [--pictures FOLDER] [--at STEP]      DIR: of the experiment

Final validation losses as mean and 95 % confidence interval over the seeds, and the difference to the
synchronous method, seed by seed. Runs that are not finished are left out. With --at: losses of the
evaluation at that number of local steps, of all runs that have got there.
"""
import argparse
import json
import math
import os
import sys

NAMES = {"sync": "sync DiLoCo", "nesterov": "async Nesterov, weight 1/4", "buffer": "async buffer(4)",
         "dn": "async DN(4, c=0)", "dn_dylu": "async DN(4, c=0) + DyLU"}
# Student's t, two-sided 95 %, by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def read_run(directory, at):
    """The evaluations, as (step, loss, virtual time, pushes), and which of them counts: the first one from
    step `at` on, or else the last one of a finished run; None if there is none."""
    if not os.path.exists(os.path.join(directory, "log.jsonl" if at else "done")):
        return None
    evals, time, pushes, done = [], 0.0, 0, False
    with open(os.path.join(directory, "log.jsonl"), encoding="utf-8") as log:
        for line in log:
            if line.startswith('{"kind":"push"'):
                time, pushes = json.loads(line)["t_virtual"], pushes + 1
            elif line.startswith('{"kind":"eval"'):
                record = json.loads(line)
                evals.append((record["step"], record["loss"], time, pushes))
            elif line.startswith('{"kind":"end"'):
                done = json.loads(line)["reason"].startswith("done")
    if not at and not done:  # it diverged
        return None
    reached = [e for e in evals if e[0] >= at] if at else evals[-1:]
    return (evals, reached[0]) if reached else None


def read_all(directory, at):
    runs = {}  # (level, method) -> {seed: (evals, the one that counts)}
    for level in ("none", "very"):
        for method in NAMES:
            parent = os.path.join(directory, level, method)
            for seed in sorted(os.listdir(parent)) if os.path.isdir(parent) else []:
                run = read_run(os.path.join(parent, seed), at)
                if run:
                    runs.setdefault((level, method), {})[seed] = run
    return runs


def interval(values):
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:.4f}"
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return f"{mean:.4f} ± {T95[len(values) - 1] * deviation / math.sqrt(len(values)):.4f}"


def table(directory, runs):
    print("| devices | method | outer rate | seeds | validation loss | minus sync | perplexity / sync's "
          "| virtual time (s) | pushes |\n|---|---|---|---|---|---|---|---|---|")
    for (level, method), seeds in runs.items():
        # What sync learns does not depend on its devices, only how long it takes.
        sync = runs.get((level, "sync")) or runs.get(("very", "sync")) or {}
        losses = {seed: end[1] for seed, (_, end) in seeds.items()}
        both = [losses[seed] - sync[seed][1][1] for seed in losses if seed in sync]
        ratio = f"{math.exp(sum(both) / len(both)):.4f}" if both else ""
        rate = open(os.path.join(directory, f"rate_{method}"), encoding="utf-8").read().strip()
        _, _, time, pushes = next(iter(seeds.values()))[1]
        print(f"| {level} | {NAMES[method]} | {rate} | {len(seeds)} | {interval(list(losses.values()))} | "
              f"{interval(both) if both and method != 'sync' else ''} | {ratio} | {time:.0f} | {pushes} |")


def pictures(folder, runs):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for index, (method, name) in enumerate(NAMES.items()):
        for seed, (evals, _) in runs.get(("very", method), {}).items():
            label = name if seed == min(runs[("very", method)]) else None
            for axis, column in zip(axes, (0, 2)):
                axis.plot([e[column] for e in evals], [e[1] for e in evals], color=f"C{index}", linewidth=1.2,
                          label=label)
    for axis, label in zip(axes, ("local steps of all workers", "virtual time (s)")):
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("validation loss (nats/token)")
    axes[0].set_ylim(top=max(e[0][1][1] for s in runs.values() for e in s.values()) + 0.02)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(os.path.join(folder, "async_loss.png"), dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--pictures", metavar="FOLDER")
    parser.add_argument("--at", type=int, metavar="STEP")
    options = parser.parse_args()
    runs = read_all(options.directory, options.at)
    if not runs:
        sys.exit(f"async_table.py: {options.directory}: no run has got so far")
    table(options.directory, runs)
    if options.pictures:
        pictures(options.pictures, runs)


if __name__ == "__main__":
    main()
