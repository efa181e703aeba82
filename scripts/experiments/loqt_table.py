#!/usr/bin/python3
"""What scripts/experiments/loqt.sh found, as a table in Markdown and a picture.

    scripts/experiments/loqt_table.py DIR [--picture FILE]      DIR: of the experiment

Final validation losses as mean over the seeds, perplexity over that of the full method, weights and
optimizer state from the log's memory records, median step time, share of the time in refresh steps.
"""
import argparse
import json
import math
import os
import statistics

NAMES = {"full": "full AdamW", "int8": "LoQT int8", "nq": "LoQT without quantization", "nf4": "LoQT NF4",
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--picture")
    args = parser.parse_args()
    runs = {}
    for method in NAMES:
        parent = os.path.join(args.directory, "runs", method)
        found = [read_run(os.path.join(parent, s)) for s in sorted(os.listdir(parent))] if os.path.isdir(parent) else []
        runs[method] = [r for r in found if r]
    full = mean([last(r, "effective") for r in runs["full"]]) if runs["full"] else None
    print("| method | rate | seeds | validation loss | perplexity | / full's | rounded weights | weights + state, MiB "
          "| step, ms | refreshes |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for method, name in NAMES.items():
        if not runs[method]:
            continue
        loss = mean([last(r, "effective") for r in runs[method]])
        merged = [m for m in (last(r, "merged") for r in runs[method]) if m is not None]
        step, share = times(runs[method][0])
        with open(os.path.join(args.directory, "rate_" + method), encoding="utf-8") as file:
            rate = file.read().strip()
        print(f"| {name} | {rate} | {len(runs[method])} | {loss:.4f} | {math.exp(loss):.2f} | "
              f"{'' if full is None else format(math.exp(loss - full), '.3f')} | "
              f"{format(math.exp(mean(merged)), '.2f') if merged else ''} | {held(runs[method][0]):.1f} | {step:.0f} | "
              f"{share:.1%} |")
    if args.picture:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
        figure, axes = pyplot.subplots(figsize=(7, 4))
        for method, name in NAMES.items():
            if runs[method]:
                evals = [e for e in runs[method][0]["eval"] if e["weights"] == "effective"]
                axes.plot([e["step"] for e in evals], [e["loss"] for e in evals], marker="o", label=name)
        axes.set_xlabel("steps"), axes.set_ylabel("validation loss"), axes.legend(), axes.grid(alpha=0.3)
        figure.tight_layout()
        figure.savefig(args.picture, dpi=120)


if __name__ == "__main__":
    main()
