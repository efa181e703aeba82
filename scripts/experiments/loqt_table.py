#!/usr/bin/python3
"""What scripts/experiments/loqt.sh found, as a table in Markdown and a picture.

    scripts/experiments/loqt_table.py DIR [--picture FILE]      DIR: of the experiment

Final validation losses as mean over the seeds and half the width of their 95 % interval (Student's t), perplexity
over that of the full method with the same seeds, weights and optimizer state from the log's memory records, median
step time of the short runs in timing/, share of the time in refresh steps.
"""
import argparse
import json
import math
import os
import statistics

NAMES = {"full": "full AdamW", "int8": "LoQT int8", "svd": "LoQT int8, exact SVD", "nq": "LoQT without quantization", "nf4": "LoQT NF4",
         "galore": "GaLore", "lora": "LoRA", "relora": "ReLoRA"}


def read_run(directory):
    """The log's records by kind; None if the run is not finished or has diverged."""
    if not os.path.exists(os.path.join(directory, "done")):
        return None
    kinds = {}
    with open(os.path.join(directory, "log.jsonl"), encoding="utf-8") as log:
        for line in log:
            record = json.loads(line)
            kinds.setdefault(record["kind"], []).append(record)
    return kinds if kinds.get("end") and kinds["end"][-1]["reason"] == "done" else None


def last(run, weights):
    found = [e["loss"] for e in run["eval"] if e["weights"] == weights]
    return found[-1] if found else None


def held(run):
    """MiB of weights and optimizer state."""
    sizes = {m["category"]: m["bytes"] for m in run["memory"]}
    return sum(b for c, b in sizes.items() if c.startswith("weights") or c == "optimizer state") / 2**20


def times(run):
    """Median milliseconds of a usual step, and the share of all time that refreshes cost."""
    refreshed = {m["step"] for m in run.get("merge", [])}
    usual = statistics.median(t["step_ms"] for t in run["train"] if t["step"] not in refreshed)
    extra = sum(t["step_ms"] - usual for t in run["train"] if t["step"] in refreshed)
    return usual, extra / sum(t["step_ms"] for t in run["train"])


def mean(values):
    return sum(values) / len(values)


def half_width(values):
    """Of the mean's 95 % interval; of one value none."""
    t = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
    return t[len(values)] * statistics.stdev(values) / math.sqrt(len(values)) if len(values) in t else None


def energies(run):
    """Of the refresh nearest to step 1,000: step, median and least share, over the matrices, of the energy of the exact
    basis that the sketch of the same gradient would have held."""
    records = run["merge"]
    nearest = min({m["step"] for m in records}, key=lambda step: abs(step - 1000))
    shares = [m["sketch_energy"] / m["energy"] for m in records if m["step"] == nearest]
    return nearest, statistics.median(shares), min(shares)


def apart(runs, method, other):
    """Prints the differences of the final losses, seed by seed."""
    differences = [last(runs[method][s], "effective") - last(runs[other][s], "effective")
                   for s in sorted(runs[method].keys() & runs[other].keys())]
    if differences:
        width = half_width(differences)
        print(f"\nloss of {NAMES[method]} - {NAMES[other]}: {', '.join(format(d, '+.4f') for d in differences)}; mean "
              f"{mean(differences):+.4f}{'' if width is None else f' +- {width:.4f}'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--picture")
    args = parser.parse_args()
    runs = {}  # method -> seed -> records
    for method in NAMES:
        parent = os.path.join(args.directory, "runs", method)
        seeds = sorted(os.listdir(parent)) if os.path.isdir(parent) else []
        runs[method] = {s: r for s in seeds if (r := read_run(os.path.join(parent, s)))}
    print("| method | rate | seeds | validation loss | perplexity | / full's | rounded weights | weights + state, MiB "
          "| step, ms | refreshes |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for method, name in NAMES.items():
        if not runs[method]:
            continue
        losses = {seed: last(r, "effective") for seed, r in runs[method].items()}
        loss, width = mean(losses.values()), half_width(list(losses.values()))
        common = [loss_ - last(runs["full"][seed], "effective") for seed, loss_ in losses.items() if seed in runs["full"]]
        merged = [m for m in (last(r, "merged") for r in runs[method].values()) if m is not None]
        one = next(iter(runs[method].values()))
        _, share = times(one)
        timing = read_run(os.path.join(args.directory, "timing", method))
        step = f"{times(timing)[0]:.0f}" if timing else ""
        with open(os.path.join(args.directory, "rate_" + method), encoding="utf-8") as file:
            rate = file.read().strip()
        print(f"| {name} | {rate} | {len(losses)} | {loss:.4f}{'' if width is None else f' +- {width:.4f}'} | "
              f"{math.exp(loss):.2f} | {format(math.exp(mean(common)), '.3f') if common else ''} | "
              f"{format(math.exp(mean(merged)), '.2f') if merged else ''} | {held(one):.1f} | {step} | {share:.1%} |")
    apart(runs, "int8", "full")
    apart(runs, "int8", "galore")
    apart(runs, "int8", "svd")
    for seed, run in sorted(runs["svd"].items()):
        step, middle, least = energies(run)
        print(f"\nseed {seed}, step {step}: the sketch's basis would hold {middle:.4f} of the exact one's energy (median; "
              f"the least: {least:.4f})")
    if args.picture:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
        figure, (curves, ends) = pyplot.subplots(1, 2, figsize=(11, 4))
        for method, name in NAMES.items():
            if not runs[method]:
                continue
            first = next(iter(runs[method].values()))
            evals = [e for e in first["eval"] if e["weights"] == "effective" and e["step"] > 0]
            curves.plot([e["step"] for e in evals], [e["loss"] for e in evals], marker="o", label=name)
            ends.scatter([held(r) for r in runs[method].values()],
                         [last(r, "effective") for r in runs[method].values()], label=name)
        curves.set_title("first seed of each method"), curves.set_xlabel("steps")
        ends.set_title("all seeds, after the last step"), ends.set_xlabel("weights and optimizer state, MiB")
        for axes in (curves, ends):
            axes.set_ylabel("validation loss, nats per token"), axes.grid(alpha=0.3)
        curves.legend()
        figure.tight_layout()
        figure.savefig(args.picture, dpi=120)


if __name__ == "__main__":
    main()
