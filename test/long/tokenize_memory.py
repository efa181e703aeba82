#!/usr/bin/env python3
"""Peak memory of ./tokenize: below 300 MiB plus 24 times the longest document, whatever the input's
size. A made-up input of 1 GiB, a longest document of 2 MiB in its middle; then a million tiny
documents. Also: as many documents come out as went in.

    tokenize_memory.py [--gib 1]
"""
import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time


def words(rng):
    return ["".join(rng.choice("etaoinshrdlucmfw") for _ in range(rng.randint(1, 9))) for _ in range(20000)]


def write_large(path, size, longest, rng):
    """JSON lines of C4's form with `size` bytes of text; returns the number of documents."""
    vocabulary = words(rng)
    sentences = [" ".join(rng.choices(vocabulary, k=rng.randint(4, 30))) + "." for _ in range(5000)]
    total, documents = 0, 0
    with gzip.open(path, "wt", compresslevel=1) as out:
        while total < size:
            text = "\n".join(rng.choices(sentences, k=rng.randint(1, 40)))
            if longest and total > size // 2:
                text, longest = (text * (longest // len(text) + 1))[:longest], 0
            out.write(json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "u"}) + "\n")
            total += len(text)
            documents += 1
    return documents


def run(*arguments):
    """Peak resident MiB, seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(["./tokenize", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"./tokenize {' '.join(arguments)} failed")
    return usage.ru_maxrss / 1024, time.perf_counter() - start


def check(name, folder, documents, longest):
    peak, seconds = run("--tokenizer", f"{folder}/spm.model", "--out", f"{folder}/t", f"{folder}/{name}")
    with open(f"{folder}/t.json") as manifest:
        written = json.load(manifest)
    limit = 300 + 24 * longest / 2**20
    print(f"{name}: {written['documents']} documents, {written['bytes'] / 2**20:.0f} MiB of text in {seconds:.0f} s "
          f"({written['bytes'] / seconds / 1e6:.1f} MB/s), peak {peak:.0f} MiB, limit {limit:.0f} MiB")
    if written["documents"] != documents:
        sys.exit(f"expected {documents} documents")
    if peak > limit:
        sys.exit("too much memory")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--gib", type=float, default=1)
    args = args.parse_args()
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        write_large(f"{folder}/sample.gz", 4 << 20, 0, rng)
        run("--train-spm", "--vocab", "4000", "--out", f"{folder}/spm", f"{folder}/sample.gz")
        longest = 2 << 20
        documents = write_large(f"{folder}/large.json.gz", int(args.gib * 2**30), longest, rng)
        check("large.json.gz", folder, documents, longest)
        with gzip.open(f"{folder}/tiny.json.gz", "wt", compresslevel=1) as out:
            for i in range(1_000_000):
                out.write(f'{{"text":"{i}"}}\n')
        check("tiny.json.gz", folder, 1_000_000, 10)


main()
