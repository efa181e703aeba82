#!/usr/bin/python3
"""What engine, server and log of Local-SGD cost beside the local steps themselves: one run of ./train on
one thread, four workers with the Llama 20M preset, H = 50.

    test/bench/local_sgd_overhead.py [--train ./train] [--batch-size 1] [--pushes 8]

Between two pushes the clock of the log counts everything; "step_ms" counts the local steps alone (batch,
forward, backward, AdamW). The rest is what a round costs besides: weights to the worker and back, norm
and cosines, the outer step, log lines. Both are of the same seconds of one process, so other load on the
machine does not matter much. A small batch makes the share large: the rest does not grow with it.
"""
import argparse
import array
import json
import os
import random
import subprocess
import sys
import tempfile


def write_shard(path, tokens, vocab):
    """In llm.c's format: 256 int32, then uint16."""
    header = array.array("i", [20240520, 1, tokens] + [0] * 253)
    draw = random.Random(1)
    ids = array.array("H", (draw.randrange(vocab) for _ in range(tokens)))
    with open(path, "wb") as file:
        file.write(header.tobytes() + ids.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="./train")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--pushes", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shard, out = os.path.join(folder, "random.bin"), os.path.join(folder, "out")
        write_shard(shard, 1 << 20, 32000)
        command = [options.train, "--model", "llama-20M", "--workers", "4", "--inner-steps", "50",
                   "--heterogeneity", "very", "--steps", str(50 * options.pushes), "--train-data", shard,
                   "--batch-size", str(options.batch_size), "--device", "cpu", "--precision", "fp32",
                   "--threads", "1", "--save-every", "0", "--out", out]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(run.stdout + run.stderr)
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as log:
            records = [json.loads(line) for line in log]
    steps, before, rows = 0.0, None, []
    for record in records:
        if record["kind"] == "train":
            steps += record["step_ms"] / 1e3
        elif record["kind"] == "push":
            if before is not None:
                rows.append((record["time"] - before, steps))
            before, steps = record["time"], 0.0
    total, alone = (sum(column) for column in zip(*rows))
    print(f"{len(rows)} pushes of 50 steps, batch {options.batch_size}: {total:.2f} s, local steps {alone:.2f} s; "
          f"engine, server and log {100 * (total - alone) / alone:.2f} % of them "
          f"({1e3 * (total - alone) / len(rows):.0f} ms a push)")


if __name__ == "__main__":
    main()
