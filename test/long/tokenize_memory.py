#!/usr/bin/env python3
"""Peak memory of ./tokenize: below 300 MiB plus 24 times the longest document, whatever the input's
size, for each kind of tokenizer. The longest documents that are allowed, of words and of one word; a
million tiny documents; a made-up input of 1 GiB with a document of 2 MiB in its middle. Also: as many
documents come out as went in.

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


def write_gpt2(folder):
    """A byte-level tokenizer whose merges are all pairs of the made-up words' letters."""
    os.mkdir(folder)
    spelled, other = {}, 256
    for byte in range(256):
        printable = 33 <= byte <= 126 or (byte >= 161 and byte != 173)
        spelled[byte], other = (chr(byte), other) if printable else (chr(other), other + 1)
    pieces = {spelled[byte]: byte for byte in range(256)}
    pairs = [(a, b) for a in "etaoinshrdlucmfw" for b in "etaoinshrdlucmfw"]
    for a, b in pairs:
        pieces[a + b] = len(pieces)
    pieces["<|endoftext|>"] = len(pieces)
    with open(f"{folder}/encoder.json", "w") as out:
        json.dump(pieces, out)
    with open(f"{folder}/vocab.bpe", "w") as out:
        out.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs))


def check(name, tokenizer, folder, documents, longest):
    peak, seconds = run("--tokenizer", f"{folder}/{tokenizer}", "--out", f"{folder}/t", f"{folder}/{name}")
    with open(f"{folder}/t.json") as manifest:
        written = json.load(manifest)
    limit = 300 + 24 * longest / 2**20
    print(f"{name}, {tokenizer}: {written['documents']} documents, {written['bytes'] / 2**20:.0f} MiB of text in {seconds:.0f} s "
          f"({written['bytes'] / seconds / 1e6:.1f} MB/s), peak {peak:.0f} MiB, limit {limit:.0f} MiB", flush=True)
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
        for kind in ("unigram", "bpe"):
            run("--train-spm", "--spm-type", kind, "--vocab", "4000", "--out", f"{folder}/{kind}", f"{folder}/sample.gz")
        write_gpt2(f"{folder}/gpt2")
        tokenizers = ["unigram.model", "bpe.model", "gpt2"]

        # The longest documents that --max-doc-bytes allows: words, and one word.
        longest = (16 << 20) - 100
        text = " ".join(rng.choices(words(rng), k=longest // 4))[:longest]
        for name, document in (("words.json", text), ("one_word.json", text.replace(" ", "e"))):
            with open(f"{folder}/{name}", "w") as out:
                out.write(json.dumps({"text": document}) + "\n")
            for tokenizer in tokenizers:
                check(name, tokenizer, folder, 1, longest)

        with gzip.open(f"{folder}/tiny.json.gz", "wt", compresslevel=1) as out:
            for i in range(1_000_000):
                out.write(f'{{"text":"{i}"}}\n')
        check("tiny.json.gz", "unigram.model", folder, 1_000_000, 10)
        longest = 2 << 20
        for tokenizer, gib in zip(tokenizers, (args.gib, args.gib / 16, args.gib / 16)):  # BPE takes minutes for 1 GiB
            documents = write_large(f"{folder}/large.json.gz", int(gib * 2**30), longest, rng)
            check("large.json.gz", tokenizer, folder, documents, longest)


main()
