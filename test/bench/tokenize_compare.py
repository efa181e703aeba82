#!/usr/bin/env python3
"""./tokenize against (a) a Python pipeline, gzip + json + sentencepiece, one process for each of two
halves of the files, and (b) the bare SentencePiece library encoding on two threads what lies in
memory. All by turns in one run, medians of three; prints the ratios.

    tokenize_compare.py --bench build/release/spm_bench [--model spiece.model FILE.json.gz...]

Without files: ../shared's C4 and T5 tokenizer if they are there, else text that is made up here and a
tokenizer trained on it.
"""
import argparse
import glob
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

PYTHON = """
import array, gzip, json, sys, sentencepiece
sp = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
with open(sys.argv[2], "wb") as out:
    for path in sys.argv[3:]:
        for line in gzip.open(path):
            ids = sp.encode(json.loads(line)["text"])
            ids.append(sp.eos_id())
            out.write(array.array("H", ids).tobytes())
"""


def made_up(folder):
    rng = random.Random(1)
    words = ["".join(rng.choice("etaoinshrdlucmfw") for _ in range(rng.randint(1, 9))) for _ in range(20000)]
    weights = [1 / (i + 1) for i in range(len(words))]
    files = []
    for part in range(4):
        files.append(f"{folder}/made_{part}.json.gz")
        with gzip.open(files[-1], "wt", compresslevel=6) as out:
            for _ in range(2500):
                text = " ".join(rng.choices(words, weights, k=rng.randint(50, 800)))
                out.write(json.dumps({"text": text, "timestamp": "2019", "url": "u"}) + "\n")
    subprocess.run(["./tokenize", "--train-spm", "--vocab", "8000", "--out", f"{folder}/spm", files[0]],
                   check=True, stdout=subprocess.DEVNULL)
    return f"{folder}/spm.model", files


def text_bytes(files):
    return sum(len(json.loads(line)["text"].encode()) for path in files for line in gzip.open(path))


def timed(commands):
    """Seconds until all of the commands, started together, are done."""
    start = time.perf_counter()
    running = [subprocess.Popen(c, stdout=subprocess.DEVNULL) for c in commands]
    if any(p.wait() for p in running):
        sys.exit(f"failed: {commands}")
    return time.perf_counter() - start


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--bench", required=True)
    args.add_argument("--model")
    args.add_argument("--python", default="/usr/bin/python3", help="one that has sentencepiece")
    args.add_argument("files", nargs="*")
    args = args.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shared = "../shared/data/"
        files = args.files or 4 * sorted(glob.glob(shared + "c4/en/*.json.gz"))
        model = args.model or shared + "tokenizers/t5/spiece.model"
        if not files or not os.path.exists(model):
            model, files = made_up(folder)
        megabytes = text_bytes(files) / 1e6
        halves = [files[0::2], files[1::2]]
        python = [[args.python, "-c", PYTHON, model, f"{folder}/half{i}", *half] for i, half in enumerate(halves)]
        rates = {"loqal": [], "python": [], "library": []}
        for turn in range(3):
            tokenize = ["./tokenize", "--jobs", "2", "--tokenizer", model, "--out", f"{folder}/t{turn}", *files]
            rates["loqal"].append(megabytes / timed([tokenize]))
            rates["python"].append(megabytes / timed(python))
            bench = [args.bench, model, "2", *files]
            rates["library"].append(float(subprocess.run(bench, check=True, capture_output=True).stdout))
        median = {name: statistics.median(values) for name, values in rates.items()}
        print(f"{megabytes:.1f} MB of text in {len(files)} files, {model}")
        print(f"{'./tokenize --jobs 2':34}{median['loqal']:7.2f} MB/s")
        for name, what in ("python", "Python, 2 processes"), ("library", "bare library, 2 threads"):
            print(f"{what:34}{median[name]:7.2f} MB/s   ./tokenize: {median['loqal'] / median[name]:.2f} x")


main()
