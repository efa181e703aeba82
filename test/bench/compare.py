#!/usr/bin/python3
"""Whole training steps of loqal and of PyTorch on the same shapes, in one run on one machine; where a step's time
goes; and how it scales.

Three tables: ms per step and the ratio PyTorch / loqal (above 1: loqal is faster); for each operation of a step its
time beside its floor, the larger of FLOPs / measured GEMM peak and bytes / measured memory bandwidth; tokens per
second of two threads, and of two processes of one thread, over one thread's. All numbers go to a JSON file.

A shared machine's speed changes within seconds, so the programs take turns (--rounds). `ratio` is the median of the
rounds' ratios, with their range; `fastest` compares the fastest step of each program in all rounds, which other
tenants of the machine disturb least. PyTorch is torch_bench.py beside this file; without torch only loqal is measured.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

SHAPES = {"cpu": ["gpt2-124M", "gpt2-124M-T64", "char", "llama-60M"],
          "cuda": ["gpt2-124M-T1024", "llama-130M-T1024", "llama-350M-T1024"]}
HERE = os.path.dirname(os.path.abspath(__file__))

# What the operations of class Ops are to a reader of a time budget.
GROUPS = {
    "matmul": "GEMM", "bias_backward": "GEMM",
    "attention_forward": "attention", "attention_backward": "attention", "rope": "attention",
    "linear_cross_entropy": "head and loss",
    "layernorm_forward": "norms", "layernorm_backward": "norms", "rmsnorm_forward": "norms", "rmsnorm_backward": "norms",
    "gelu_forward": "activation", "gelu_backward": "activation",
    "swiglu_forward": "activation", "swiglu_backward": "activation",
    "sum_squares": "optimizer", "adamw": "optimizer",
}


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process):
    """The JSON line that a benchmark prints last."""
    out, _ = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{' '.join(process.args)}: exit code {process.returncode}")
    return json.loads(out.strip().splitlines()[-1])


def run(command):
    return finish(start(command))


def run_torch(command):
    """PyTorch's line, or None: what it cannot do here (memory, a broken compiler) costs its row alone."""
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        return json.loads(out.strip().splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        print(f"PyTorch: {' '.join(command)}: {error}", file=sys.stderr)
        return None


def write(options, numbers):
    with open(options.out, "w") as file:
        json.dump(numbers, file, indent=1)


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def compare(options, loqal, torch):
    print(f"{'shape':14} {'type':5} {'loqal ms':>9} {'of peak':>8} {'PyTorch ms':>11} {'ratio':>6} {'(range)':>13} {'fastest':>8}   PyTorch's BLAS")
    results = []
    for shape in options.shapes:
        for dtype in options.dtypes:
            # Without AVX512-BF16 PyTorch 1.13 multiplies bf16 in a scalar loop: one step of the
            # 6 x 384 shape had not ended after 150 s.
            measurable = options.have_torch and (dtype == "fp32" or options.device == "cuda" or "avx512_bf16" in cpu_flags())
            ours, theirs = [], []
            for _ in range(options.rounds):
                ours.append(run(loqal(shape, dtype, options.threads)))
                other = run_torch(torch(shape, dtype)) if measurable else None
                if other:
                    theirs.append(other)
            line = f"{shape:14} {dtype:5} {median(ours, 'ms_per_step'):9.0f} {median(ours, 'share_of_peak'):8.0%}"
            if theirs:
                ratios = [t["ms_per_step"] / o["ms_per_step"] for o, t in zip(ours, theirs)]
                fastest = min(t["fastest_ms"] for t in theirs) / min(o["fastest_ms"] for o in ours)
                line += (f" {median(theirs, 'ms_per_step'):11.0f} {statistics.median(ratios):6.2f}"
                         f" {f'({min(ratios):.2f}-{max(ratios):.2f})':>13} {fastest:8.2f}   {theirs[0]['blas']}")
                if options.device == "cuda":
                    line += (f"; {ours[0]['bytes'] / 2**30:.1f} GiB, PyTorch {theirs[0]['peak_gpu_bytes'] / 2**30:.1f} GiB;"
                             f" {median(ours, 'tokens_per_s'):.0f} tokens/s, {median(theirs, 'tokens_per_s'):.0f}")
            elif options.have_torch and not measurable:
                line += "           -      -                        (PyTorch has no fast bf16 on this CPU)"
            elif options.device == "cuda":
                line += f"   {ours[0]['bytes'] / 2**30:.1f} GiB, {median(ours, 'tokens_per_s'):.0f} tokens/s"
            print(line, flush=True)
            results.append({"shape": shape, "dtype": dtype, "loqal": ours, "torch": theirs})
            write(options, {"steps": results})  # what is measured stays, whatever comes
    return results


def print_budgets(results):
    for result in results:
        best = min(result["loqal"], key=lambda row: row["profiled_ms"])
        total = best["profiled_ms"]
        groups, listed = {}, 0
        for op, cost in best["budget"].items():
            group = groups.setdefault(GROUPS.get(op, "rest"), {"ms": 0, "floor_ms": 0, "ops": []})
            group["ops"].append((op, cost))
            for key in ("ms", "floor_ms"):
                group[key] += cost[key]
            listed += cost["ms"]
        groups.setdefault("rest", {"ms": 0, "floor_ms": 0, "ops": []})["ms"] += total - listed
        print(f"\n{result['shape']} {result['dtype']}: {total:.0f} ms; peak {best['peak_gflops']:.0f} GFLOP/s, "
              f"{best['gbytes_per_s']:.0f} GB/s, {best['device']}")
        print(f"  {'operation':24} {'calls':>5} {'ms':>8} {'share':>7} {'floor ms':>9} {'floor/ms':>8} {'GFLOP/s':>8} {'GB/s':>6}")
        for name, group in sorted(groups.items(), key=lambda item: -item[1]["ms"]):
            print(f"  {name:24} {'':5} {group['ms']:8.1f} {group['ms'] / total:7.1%}")
            for op, cost in sorted(group["ops"], key=lambda item: -item[1]["ms"]):
                rates = [cost[key] / cost["ms"] * 1e3 if cost["ms"] > 0 else 0 for key in ("gflop", "gbyte")]
                print(f"    {op:22} {cost['calls']:5} {cost['ms']:8.1f} {cost['ms'] / total:7.1%} {cost['floor_ms']:9.1f}"
                      f" {cost['floor_ms'] / max(cost['ms'], 1e-9):8.2f} {rates[0]:8.0f} {rates[1]:6.1f}")


def scaling(options, loqal):
    """Tokens per second over those of one thread: of all threads, and of two processes with one thread each."""
    print(f"\nscaling        {'type':5} {'1 thread':>9} {f'{options.threads} threads':>10} {'2 processes':>12}   tokens/s; ratios to 1 thread")
    results = []
    for shape in options.scaling:
        rounds = []
        for _ in range(options.rounds):
            one = run(loqal(shape, "fp32", 1))["tokens_per_s"]
            threads = run(loqal(shape, "fp32", options.threads))["tokens_per_s"]
            both = [start(loqal(shape, "fp32", 1)) for _ in range(2)]
            processes = sum(finish(process)["tokens_per_s"] for process in both)
            rounds.append({"one": one, "threads": threads, "processes": processes,
                           "threads_ratio": threads / one, "processes_ratio": processes / one})
        print(f"{shape:14} fp32  {median(rounds, 'one'):9.0f} {median(rounds, 'threads'):10.0f} {median(rounds, 'processes'):12.0f}"
              f"   {median(rounds, 'threads_ratio'):.2f} {median(rounds, 'processes_ratio'):.2f}", flush=True)
        results.append({"shape": shape, "rounds": rounds})
    return results


def cpu_flags():
    with open("/proc/cpuinfo") as file:
        return next((line for line in file if line.startswith("flags")), "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the step_bench program")
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=3, help="steps timed in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=list(SHAPES), default="cpu")
    parser.add_argument("--shapes", nargs="*", help="default: all of the device")
    parser.add_argument("--dtypes", nargs="*", help="default: fp32 and bf16; on a GPU bf16")
    parser.add_argument("--scaling", nargs="*", default=["char", "gpt2-124M-T64"], choices=SHAPES["cpu"])
    options = parser.parse_args()
    gpu = options.device == "cuda"
    options.shapes = options.shapes or SHAPES[options.device]
    options.dtypes = options.dtypes or (["bf16"] if gpu else ["fp32", "bf16"])
    check = "import torch; torch.ones(1, device='cuda')" if gpu else "import torch"
    options.have_torch = subprocess.run([sys.executable, "-c", check], capture_output=True).returncode == 0
    if not options.have_torch:
        print("PyTorch is not here" + (", or sees no GPU" if gpu else " (scripts/install_deps.sh bench)") + ": loqal alone")

    def loqal(shape, dtype, threads):
        return [options.bench, shape, dtype, "cuda" if gpu else str(threads), str(options.steps)]

    def torch(shape, dtype):
        return [sys.executable, os.path.join(HERE, "torch_bench.py"), "--shape", shape, "--dtype", dtype, "--device", options.device,
                "--threads", str(options.threads), "--steps", str(options.steps), "--warmup", "1", "--json"]

    steps = compare(options, loqal, torch)
    print_budgets(steps)
    numbers = {"steps": steps} if gpu else {"steps": steps, "scaling": scaling(options, loqal)}
    write(options, numbers)
    print(f"numbers: {options.out}")


if __name__ == "__main__":
    main()
