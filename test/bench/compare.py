#!/usr/bin/python3
"""Whole training steps of loqal and of PyTorch on the same shapes, in one run on one machine.

Prints a table of ms per step and the ratio PyTorch / loqal (above 1: loqal is faster), and writes all
numbers as JSON. PyTorch is torch_bench.py beside this file; without torch only loqal is measured. The two
programs take turns, so that a machine that slows down does so for both.
"""
import argparse
import json
import os
import subprocess
import sys

SHAPES = ["gpt2-124M", "gpt2-124M-T64", "char", "llama-60M"]
HERE = os.path.dirname(os.path.abspath(__file__))


def run(command):
    """The JSON line that a benchmark prints last, or None with its error on stderr."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stderr[-2000:])
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True, help="the step_bench program")
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--dtypes", nargs="*", default=["fp32", "bf16"])
    options = parser.parse_args()
    have_torch = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0
    if not have_torch:
        print("PyTorch is not installed (scripts/install_deps.sh bench): loqal alone")
    results = []
    print(f"{'shape':15} {'type':5} {'loqal ms':>9} {'of peak':>8} {'PyTorch ms':>11} {'ratio':>6}   PyTorch's BLAS")
    for shape in options.shapes:
        for dtype in options.dtypes:
            threads, steps = str(options.threads), str(options.steps)
            ours = run([options.bench, shape, dtype, threads, steps])
            # Without AVX512-BF16 PyTorch 1.13 multiplies bf16 in a scalar loop: one step of the
            # 6 x 384 shape had not ended after 150 s.
            measurable = have_torch and (dtype == "fp32" or "avx512_bf16" in cpu_flags())
            theirs = run([sys.executable, os.path.join(HERE, "torch_bench.py"), "--shape", shape, "--dtype", dtype,
                          "--threads", threads, "--steps", steps, "--json"]) if measurable else None
            results.append({"shape": shape, "dtype": dtype, "loqal": ours, "torch": theirs})
            if ours is None:
                continue
            line = f"{shape:15} {dtype:5} {ours['ms_per_step']:9.0f} {ours['share_of_peak']:8.0%}"
            if theirs:
                ratio = theirs["ms_per_step"] / ours["ms_per_step"]
                line += f" {theirs['ms_per_step']:11.0f} {ratio:6.2f}   {theirs['blas']}"
            elif have_torch and not measurable:
                line += "           -      -   (PyTorch has no fast bf16 on this CPU)"
            print(line, flush=True)
    with open(options.out, "w") as file:
        json.dump(results, file, indent=1)
    print(f"numbers: {options.out}")
    return 0 if all(r["loqal"] for r in results) else 1


def cpu_flags():
    with open("/proc/cpuinfo") as file:
        return next((line for line in file if line.startswith("flags")), "")


if __name__ == "__main__":
    sys.exit(main())
