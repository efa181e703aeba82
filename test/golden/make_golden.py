#!/usr/bin/env python3
"""Golden files for the model tests: three AdamW steps of tiny GPT-2 and Llama models in float64 PyTorch.

    /usr/bin/python3 test/golden/make_golden.py [DIRECTORY]

Writes gpt2_small, llama_small and llama_tied .safetensors beside this script (or into DIRECTORY). Written from the
papers with torch.nn.functional only; shares nothing with the C++ program. Deterministic: numpy's PCG64 fixes the
parameters, one thread and float64 the rest, so a second run gives the same bytes.

Names are Hugging Face's. All matrices are [out, in], as nn.Linear stores them and as the program keeps them;
Hugging Face's GPT-2 files hold c_attn, c_proj and c_fc as [in, out] (Conv1D), so these are NOT byte-compatible with those.

Content:  param.NAME  F32  initial value            grad.NAME  F64  gradient of the first loss, not clipped
          after.NAME  F64  after three steps        tokens, targets  I32 [B,T], target -1 = ignored
          loss  F64 [1]  mean over unmasked targets logits  F32 [V]  of the last position of row 0, first step
          losses, grad_norms  F64 [3]  of each step, before its update; the norm before clipping
          __metadata__: the configuration, as decimal strings
A tied head is stored once, as the embedding. The three steps use the same batch: AdamW, lr 1e-3, betas 0.9 / 0.95,
eps 1e-8, weight decay 0.1 on 2-D tensors, gradients scaled by min(1, 1 / global norm).
"""
import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

LR, BETA1, BETA2, EPS, DECAY, CLIP, STEPS = 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 3


# ---- models: functions of (parameters, tokens) ----------------------------------------------------


def causal_attention(q, k, v):
    """q [B,NH,T,HS], k and v [B,NKV,T,HS]; head h reads k/v head h // (NH/NKV)."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    T = q.shape[2]
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    scores = scores.masked_fill(torch.triu(torch.ones(T, T, dtype=torch.bool), 1), -math.inf)
    out = torch.softmax(scores, dim=-1) @ v
    return out.transpose(1, 2).reshape(out.shape[0], T, -1)


def heads(x, n):
    return x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)


def gpt2(p, tokens, c):
    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    def norm(x, name):
        return F.layer_norm(x, (c["C"],), p[name + ".weight"], p[name + ".bias"], 1e-5)

    x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(c["L"]):
        h = f"transformer.h.{i}."
        q, k, v = linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(c["C"], dim=2)
        x = x + linear(causal_attention(heads(q, c["NH"]), heads(k, c["NH"]), heads(v, c["NH"])), h + "attn.c_proj")
        u = linear(norm(x, h + "ln_2"), h + "mlp.c_fc")
        gelu = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        x = x + linear(gelu, h + "mlp.c_proj")
    return F.linear(norm(x, "transformer.ln_f"), p["transformer.wte.weight"])


def rope(x):
    """x [B,heads,T,HS]; half-split pairs (i, i + HS/2), angle t * 10000^(-2i/HS)."""
    T, HS = x.shape[2], x.shape[3]
    frequency = 10000.0 ** (-torch.arange(0, HS, 2, dtype=x.dtype) / HS)
    angle = torch.arange(T, dtype=x.dtype)[:, None] * frequency
    a, b = x[..., : HS // 2], x[..., HS // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


def llama(p, tokens, c):
    def norm(x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * p[name + ".weight"]

    x = p["model.embed_tokens.weight"][tokens]
    for i in range(c["L"]):
        h = f"model.layers.{i}."
        a = norm(x, h + "input_layernorm")
        q, k, v = (heads(F.linear(a, p[h + f"self_attn.{n}_proj.weight"]), c["NH" if n == "q" else "NKV"]) for n in "qkv")
        x = x + F.linear(causal_attention(rope(q), rope(k), v), p[h + "self_attn.o_proj.weight"])
        m = norm(x, h + "post_attention_layernorm")
        gate, up = F.linear(m, p[h + "mlp.gate_proj.weight"]), F.linear(m, p[h + "mlp.up_proj.weight"])
        x = x + F.linear(gate * torch.sigmoid(gate) * up, p[h + "mlp.down_proj.weight"])
    return F.linear(norm(x, "model.norm"), p.get("lm_head.weight", p["model.embed_tokens.weight"]))


def gpt2_shapes(c):
    C, Fw = c["C"], c["F"]
    shapes = {"transformer.wte.weight": (c["V"], C), "transformer.wpe.weight": (c["Tmax"], C)}
    for i in range(c["L"]):
        h = f"transformer.h.{i}."
        for name, out, inn in (("attn.c_attn", 3 * C, C), ("attn.c_proj", C, C), ("mlp.c_fc", Fw, C), ("mlp.c_proj", C, Fw)):
            shapes[h + name + ".weight"], shapes[h + name + ".bias"] = (out, inn), (out,)
        for name in ("ln_1", "ln_2"):
            shapes[h + name + ".weight"], shapes[h + name + ".bias"] = (C,), (C,)
    shapes["transformer.ln_f.weight"], shapes["transformer.ln_f.bias"] = (C,), (C,)
    return shapes


def llama_shapes(c):
    C, Q, K, Fw = c["C"], c["NH"] * c["HS"], c["NKV"] * c["HS"], c["F"]
    shapes = {"model.embed_tokens.weight": (c["V"], C)}
    for i in range(c["L"]):
        h = f"model.layers.{i}."
        shapes[h + "input_layernorm.weight"] = shapes[h + "post_attention_layernorm.weight"] = (C,)
        for name, shape in (("q", (Q, C)), ("k", (K, C)), ("v", (K, C)), ("o", (C, Q))):
            shapes[h + f"self_attn.{name}_proj.weight"] = shape
        for name, shape in (("gate", (Fw, C)), ("up", (Fw, C)), ("down", (C, Fw))):
            shapes[h + f"mlp.{name}_proj.weight"] = shape
    shapes["model.norm.weight"] = (C,)
    if not c["tied"]:
        shapes["lm_head.weight"] = (c["V"], C)
    return shapes


# ---- the experiment -------------------------------------------------------------------------------


def mean_loss(model, p, tokens, targets, c):
    logits = model(p, tokens, c)
    nll = torch.logsumexp(logits, -1) - logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    mask = targets >= 0
    return (nll * mask).sum() / mask.sum(), logits


def initial(shapes, rng):
    """Matrices N(0, 1/in), so that activations and gradients are of order 1; norms around 1; rounded to fp32."""
    p = {}
    for name, shape in shapes.items():
        x = rng.standard_normal(shape)
        if len(shape) == 2:
            x *= 0.2 if "wte" in name or "wpe" in name or "embed" in name else 1 / math.sqrt(shape[1])
        elif name.endswith("bias"):
            x *= 0.1
        else:
            x = 1 + 0.2 * x
        p[name] = torch.from_numpy(x.astype(np.float32).astype(np.float64)).requires_grad_(True)
    return p


def check_gradients(model, p, grads, tokens, targets, c, rng):
    """Second method: central differences, one random element and one random direction of every tensor."""
    worst, h = 0.0, 1e-5
    for name, x in p.items():
        one = np.zeros(x.shape)
        one[tuple(rng.integers(0, n) for n in x.shape)] = 1
        for direction in (one, rng.standard_normal(x.shape)):
            d = torch.from_numpy(direction)
            with torch.no_grad():
                high, low = (mean_loss(model, {**p, name: x + s * h * d}, tokens, targets, c)[0] for s in (1, -1))
            error = abs(((high - low) / (2 * h) - (grads[name] * d).sum()).item())
            scale = d.norm().item() * (grads[name].norm().item() + 1e-3)
            worst = max(worst, error / scale)
    assert worst < 1e-6, worst
    return worst


def check_against_torch(model, p0, tokens, targets, c, after, losses):
    """Second method for the update: torch.optim.AdamW and F.cross_entropy."""
    p = {n: x.detach().clone().requires_grad_(True) for n, x in p0.items()}
    decay = [x for x in p.values() if x.dim() == 2]
    other = [x for x in p.values() if x.dim() != 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": DECAY}, {"params": other, "weight_decay": 0.0}],
                            lr=LR, betas=(BETA1, BETA2), eps=EPS)
    for step in range(STEPS):
        opt.zero_grad()
        logits = model(p, tokens, c)
        loss = F.cross_entropy(logits.reshape(-1, c["V"]), targets.reshape(-1), ignore_index=-1)
        loss.backward()
        assert abs(loss.item() - losses[step]) < 1e-12, (step, loss.item(), losses[step])
        norm = torch.sqrt(sum((x.grad**2).sum() for x in p.values()))
        for x in p.values():
            x.grad.mul_(min(1.0, CLIP / norm.item()))
        opt.step()
    return p


def make(path, arch, c, B, T, seed):
    rng = np.random.Generator(np.random.PCG64(seed))
    model, shapes = (gpt2, gpt2_shapes(c)) if arch == "gpt2" else (llama, llama_shapes(c))
    p = initial(shapes, rng)
    first = {n: x.detach().clone() for n, x in p.items()}
    tokens = torch.from_numpy(rng.integers(0, c["V"], (B, T)))
    targets = torch.from_numpy(rng.integers(0, c["V"], (B, T)))
    targets[0, 2] = targets[B - 1, 0] = targets[1, T - 1] = targets[1, 4] = -1

    m = {n: torch.zeros_like(x) for n, x in p.items()}
    v = {n: torch.zeros_like(x) for n, x in p.items()}
    losses, norms, out = [], [], {}
    for step in range(1, STEPS + 1):
        loss, logits = mean_loss(model, p, tokens, targets, c)
        grads = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
        norm = math.sqrt(sum((g * g).sum().item() for g in grads.values()))
        losses.append(loss.item())
        norms.append(norm)
        if step == 1:
            worst = check_gradients(model, p, grads, tokens, targets, c, np.random.Generator(np.random.PCG64(99)))
            out["loss"] = np.array([loss.item()])
            out["logits"] = logits[0, -1].detach().numpy().astype(np.float32)
            first_grads = grads
        with torch.no_grad():
            for n, x in p.items():
                g = grads[n] * min(1.0, CLIP / norm)
                if x.dim() == 2:
                    x -= LR * DECAY * x
                m[n] = BETA1 * m[n] + (1 - BETA1) * g
                v[n] = BETA2 * v[n] + (1 - BETA2) * g * g
                x -= LR / (1 - BETA1**step) * m[n] / (torch.sqrt(v[n] / (1 - BETA2**step)) + EPS)
    theirs = check_against_torch(model, first, tokens, targets, c, p, losses)
    moved = 0.0
    for n in p:
        # Where the true gradient is 0 (GPT-2's key bias: softmax does not see a constant), its rounding noise is
        # comparable with eps and AdamW makes a step of arbitrary size of it; nothing can agree there.
        solid = first_grads[n].abs() > 1e-12
        moved = max(moved, ((theirs[n] - p[n]).abs() * solid).max().item())
    assert moved < 1e-9, moved

    for n in p:
        out["param." + n] = first[n].numpy().astype(np.float32)
        out["grad." + n] = first_grads[n].numpy()
        out["after." + n] = p[n].detach().numpy()
    out["tokens"], out["targets"] = tokens.numpy().astype(np.int32), targets.numpy().astype(np.int32)
    out["losses"], out["grad_norms"] = np.array(losses), np.array(norms)
    metadata = {"arch": arch, "B": B, "T": T, "lr": LR, "beta1": BETA1, "beta2": BETA2, "adam_eps": EPS,
                "weight_decay": DECAY, "grad_clip": CLIP, "norm_eps": 1e-5, **c}
    if arch == "llama":
        metadata["rope_theta"] = 10000
    write_safetensors(path, out, metadata)
    print(f"{os.path.basename(path)}: {os.path.getsize(path)} bytes, losses {losses}, norms {norms}; "
          f"finite differences agree to {worst:.1e}, torch.optim.AdamW to {moved:.1e}")


def write_safetensors(path, tensors, metadata):
    """8 bytes little-endian header length, JSON header padded with blanks to 8 bytes, data; widest types first."""
    code = {"float64": "F64", "float32": "F32", "int32": "I32"}
    names = sorted(tensors, key=lambda n: (-tensors[n].itemsize, n))
    header, end = {"__metadata__": {k: str(v) for k, v in sorted(metadata.items())}}, 0
    for n in names:
        x = tensors[n]
        header[n] = {"dtype": code[x.dtype.name], "shape": list(x.shape), "data_offsets": [end, end + x.nbytes]}
        end += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for n in names:
            f.write(np.ascontiguousarray(tensors[n]).astype(tensors[n].dtype.newbyteorder("<")).tobytes())


def main():
    torch.set_num_threads(1)
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    make(f"{out}/gpt2_small.safetensors", "gpt2",
         {"L": 2, "C": 36, "NH": 3, "HS": 12, "F": 144, "V": 61, "Tmax": 16, "tied": 1}, B=3, T=11, seed=1)
    make(f"{out}/llama_small.safetensors", "llama",
         {"L": 2, "C": 40, "NH": 6, "NKV": 2, "HS": 8, "F": 52, "V": 67, "tied": 0}, B=2, T=13, seed=2)
    make(f"{out}/llama_tied.safetensors", "llama",
         {"L": 2, "C": 32, "NH": 4, "NKV": 4, "HS": 8, "F": 48, "V": 67, "tied": 1}, B=2, T=13, seed=3)


if __name__ == "__main__":
    main()
