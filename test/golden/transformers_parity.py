#!/usr/bin/env python3
"""loqal against Hugging Face's transformers: logits and greedy ids of random models, both ways.

    python test/golden/transformers_parity.py            checks (make test-programs first), prints a table, exit code 1 if it fails
    python test/golden/transformers_parity.py --fixtures writes the models in test/golden/transformers/ again

Needs torch and transformers (4.38 or later); nothing else in the project does. Their save_pretrained() writes models with
weights from a seed, their float64 forward gives the logits, their generate() the ids; a file golden.safetensors beside the
model holds both, and the test TransformersTest (test/model/transformers_test.cc) compares: it reads the fixtures, and the
directories in $LOQAL_TRANSFORMERS, separated by colons. The other way loqal trains a model for some steps and exports it,
transformers computes, and the same test compares.

golden.safetensors:  prompt I32 [T], logits F64 [T,V] after each token, greedy I32: what follows the prompt
"""
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from make_golden import write_safetensors
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

PROMPT, GREEDY = 12, 20
HERE = os.path.dirname(os.path.abspath(__file__))


def gpt2(C, NH, F, V, L):
    """Every matrix is rectangular, or a transpose could hide."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=48, n_embd=C, n_layer=L, n_head=NH, n_inner=F,
                                      bos_token_id=None, eos_token_id=None))


def llama(C, NH, NKV, F, V, L, tied, theta=10000.0):
    return LlamaForCausalLM(LlamaConfig(vocab_size=V, hidden_size=C, intermediate_size=F, num_hidden_layers=L,
                                        num_attention_heads=NH, num_key_value_heads=NKV, max_position_embeddings=48,
                                        tie_word_embeddings=tied, rope_theta=theta, rms_norm_eps=1e-5,
                                        bos_token_id=None, eos_token_id=None, pad_token_id=None))


def fill(model, seed):
    """Weights that matter, of order 1 / sqrt(inputs): logits of order 1. Norms around 1, biases not 0."""
    rng = np.random.Generator(np.random.PCG64(seed))
    with torch.no_grad():
        for name, x in model.named_parameters():
            value = rng.standard_normal(tuple(x.shape))
            if x.dim() == 2:
                conv1d = "c_" in name  # [in, out]; embeddings, seen as a head, are [out, in]
                value *= x.shape[0 if conv1d else 1] ** -0.5
            else:
                value = 0.1 * value if name.endswith("bias") else 1 + 0.2 * value
            x.copy_(torch.from_numpy(value))
    return model


def write_golden(directory):
    """What transformers makes of the model in this directory."""
    model = AutoModelForCausalLM.from_pretrained(directory, torch_dtype=torch.float64).eval()
    V, margin, seed = model.config.vocab_size, 0, 0
    while margin < 1e-3:  # the two likeliest tokens must not be so close that rounding decides
        seed += 1
        assert seed < 100, directory
        prompt = torch.from_numpy(np.random.Generator(np.random.PCG64(seed)).integers(0, V, (1, PROMPT)))
        with torch.no_grad():
            ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=GREEDY,
                                 pad_token_id=0, eos_token_id=V)  # V: no token ends it
            logits = model(ids).logits[0].double()
        top = logits[PROMPT - 1:-1].topk(2).values
        margin = (top[:, 0] - top[:, 1]).min().item()
    assert ids.shape[1] == PROMPT + GREEDY, ids
    write_safetensors(os.path.join(directory, "golden.safetensors"),
                      {"prompt": prompt[0].numpy().astype(np.int32), "logits": logits[:PROMPT].numpy(),
                       "greedy": ids[0, PROMPT:].numpy().astype(np.int32)},
                      {"transformers": transformers.__version__})


def save(directory, model, dtype=torch.float32, shard="1GB", base=False):
    model = model.to(dtype)
    (model.transformer if base else model).save_pretrained(directory, max_shard_size=shard, safe_serialization=True)


def write_fixtures():
    out = os.path.join(HERE, "transformers")
    shutil.rmtree(out, ignore_errors=True)
    save(f"{out}/gpt2", fill(gpt2(24, 3, 40, 61, 2), 1))
    save(f"{out}/llama_gqa_sharded", fill(llama(32, 4, 2, 44, 67, 2, tied=False), 2), torch.bfloat16, "12KB")
    save(f"{out}/llama_tied", fill(llama(24, 4, 1, 40, 59, 2, tied=True), 3), torch.float16)
    for name in sorted(os.listdir(out)):
        os.remove(f"{out}/{name}/generation_config.json")
        write_golden(f"{out}/{name}")
        print(name, sum(os.path.getsize(f"{out}/{name}/{f}") for f in os.listdir(f"{out}/{name}")), "bytes")


# ---- the check, with larger models ---------------------------------------------------------------


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


def compare(directory):
    """Lines of the test about one directory, or the end."""
    os.environ["LOQAL_TRANSFORMERS"] = directory
    for line in run("build/release/run_tests", "--gtest_filter=TransformersTest.*").splitlines():
        if line.startswith(directory):
            print(line.replace(directory, os.path.basename(directory).ljust(22)))


def export_keeps_every_bit(directory):
    copy = directory + "_export"
    run("./train", "--init", directory, "--export", copy)
    theirs = {}
    for file in sorted(os.listdir(directory)):
        if file.startswith("model") and file.endswith(".safetensors"):
            theirs.update(load_file(f"{directory}/{file}"))
    ours = load_file(f"{copy}/model.safetensors")
    for name, x in ours.items():
        y = theirs.get(name, theirs.get(name.replace("transformer.", "", 1))).float()
        assert x.shape == y.shape and torch.equal(x.view(torch.int32), y.contiguous().view(torch.int32)), (copy, name)
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    a, b = (AutoModelForCausalLM.from_pretrained(d, torch_dtype=torch.float64).eval() for d in (directory, copy))
    ids = torch.arange(PROMPT)[None]
    with torch.no_grad():
        assert torch.equal(a(ids).logits, b(ids).logits), copy


def check(tmp):
    for name, model, options in (
            ("gpt2", gpt2(96, 6, 200, 501, 3), {}),
            ("gpt2_base_sharded", gpt2(96, 6, 200, 501, 3), {"base": True, "shard": "100KB"}),
            ("llama", llama(96, 6, 6, 200, 501, 3, tied=False), {}),
            ("llama_gqa_sharded", llama(96, 6, 2, 200, 501, 3, tied=False, theta=5e5), {"shard": "100KB"}),
            ("llama_gqa_bf16", llama(96, 6, 3, 200, 501, 3, tied=False), {"dtype": torch.bfloat16}),
            ("llama_tied_fp16", llama(96, 6, 1, 200, 501, 3, tied=True), {"dtype": torch.float16, "shard": "100KB"})):
        directory = f"{tmp}/{name}"
        save(directory, fill(model, 5), **options)
        write_golden(directory)
        compare(directory)
        export_keeps_every_bit(directory)
    # The other way: models that loqal trained.
    with open(f"{tmp}/text.txt", "w") as f:
        f.write(" ".join(str(i * i) for i in range(20000)))
    run("./tokenize", "--train-spm", "--vocab", "270", "--out", f"{tmp}/spm", f"{tmp}/text.txt")
    run("./tokenize", "--tokenizer", f"{tmp}/spm.model", "--out", f"{tmp}/t", f"{tmp}/text.txt")
    for name, options in (("from_loqal_gpt2", "--arch gpt2"), ("from_loqal_llama", "--kv-heads 2"),
                          ("from_loqal_llama_tied", "--tied true")):
        run("./train", *options.split(), "--layers", "2", "--width", "48", "--heads", "4", "--ffn", "80", "--seq-len", "48",
            "--lr", "1e-2", "--steps", "20", "--precision", "fp32", "--tokenizer", f"{tmp}/spm.model", "--train-data",
            f"{tmp}/t_000000.bin", "--out", f"{tmp}/out_{name}", "--export", f"{tmp}/{name}")
        assert os.path.exists(f"{tmp}/{name}/tokenizer.model")
        write_golden(f"{tmp}/{name}")
        compare(f"{tmp}/{name}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["--fixtures"]:
        write_fixtures()
    else:
        os.chdir(os.path.join(HERE, "../.."))
        with tempfile.TemporaryDirectory() as tmp:
            check(tmp)
