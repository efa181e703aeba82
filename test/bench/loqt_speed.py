#!/usr/bin/python3
"""Step time of LoQT beside full AdamW's: ./train on the Llama 130M preset, rank 192, batches of 8 x 256 tokens, in
turns, so that what else the machine does meets both.

    test/bench/loqt_speed.py [--train ./train] [--precision bf16] [--rounds 3] [--threads 0]

Between refreshes: the ratio of the medians, without the first two steps, which touch the memory. A refresh in the
middle of each LoQT run, minus a usual step, is what one costs; the default schedule has 39 in 10,000 steps.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from local_sgd_overhead import write_shard


def step_ms(options, shard, folder, method):
    out = os.path.join(folder, "out")
    subprocess.run(["rm", "-rf", out], check=True)
    command = [options.train, "--model", "llama-130M", "--batch-size", "8", "--seq-len", "256", "--device", "cpu",
               "--precision", options.precision, "--threads", str(options.threads), "--train-data", shard, "--save-every",
               "0", "--steps", "10", "--out", out, "--method"] + method
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stdout + run.stderr)
    with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as log:
        records = [json.loads(line) for line in log]
    return [r["step_ms"] for r in records if r["kind"] == "train"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="./train")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    full, loqt, refresh = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        shard = os.path.join(folder, "random.bin")
        write_shard(shard, 1 << 18, 32000)
        for _ in range(options.rounds):
            full += step_ms(options, shard, folder, ["full"])[2:]  # the first steps touch the memory
            times = step_ms(options, shard, folder, ["loqt", "--rank", "192", "--interval", "4", "--growth", "0"])
            refresh.append(times.pop(4))  # at 0, and at 4
            loqt += times[2:]
    usual_full, usual = statistics.median(full), statistics.median(loqt)
    extra = statistics.median(refresh) - usual
    print(f"Llama 130M, rank 192, 8 x 256 tokens, {options.precision}: full AdamW {usual_full:.0f} ms, LoQT int8 "
          f"{usual:.0f} ms a step: {usual / usual_full:.3f}")
    print(f"a refresh adds {extra:.0f} ms; 39 of them in 10,000 steps "
          f"are {39 * extra / (39 * extra + 10000 * usual):.2%} of the time, one in 100 steps "
          f"{extra / (extra + 100 * usual):.2%}")


if __name__ == "__main__":
    main()
