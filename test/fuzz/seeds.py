#!/usr/bin/env python3
"""Writes the fuzzers' first inputs: seeds.py DIR makes DIR/fuzz_text, DIR/fuzz_json, DIR/fuzz_shard."""
import gzip
import pathlib
import struct
import sys

JSON = [
    '{"text":"a \\ud83d\\ude00 \\u0000 b\\n","url":"http:\\/\\/x","n":[1,2e5,{}]}',
    '{"timestamp":null,"text":"café","timestamp":"2019"}',
    '{"text":"plain","url":"u"}',
    '{"n":-12,"ok":true,"text":""}',
]
LINES = "\n".join(JSON).encode() + b"\n"
TEXTS = [LINES, b"one\n\ntwo<e>three\r\n", b"\xef\xbb\xbfx", b"<html>", b"\xff\xfe"]
TEXTS += [gzip.compress(t) for t in TEXTS] + [gzip.compress(LINES) * 2, gzip.compress(LINES)[:-4]]


def shard(magic, version, width, ids, *words):
    header = struct.pack("<12i", magic, version, len(ids), *(list(words) + [0] * 9)[:9])
    return header + b"".join(i.to_bytes(width, "little") for i in ids)


TAG = (0x6C61716C, 1)
SEEDS = {
    "fuzz_json": [line.encode() for line in JSON],
    "fuzz_text": [bytes([mode, 200]) + text for text in TEXTS for mode in (0, 1, 6)],
    "fuzz_shard": [
        shard(20240520, 1, 2, [1, 2, 3]),
        shard(20240520, 1, 2, [1, 2, 3, 299], *TAG, 300, -1, 1, 0, 7, 8, 2),
        shard(20240801, 7, 4, [70000, 5], *TAG, 70001, 1, 2, -1, 7, 8),
    ],
}
for name, inputs in SEEDS.items():
    folder = pathlib.Path(sys.argv[1]) / name
    folder.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(inputs):
        (folder / f"seed{i}").write_bytes(data)
