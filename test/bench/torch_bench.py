#!/usr/bin/env python3
"""The baseline: milliseconds per training step of PyTorch, for the shapes that our own benchmark uses.

    /usr/bin/python3 test/bench/torch_bench.py --shape gpt2-124M --dtype fp32 --threads 2 --steps 5

A step is forward, cross-entropy over all positions, backward, clipping to norm 1, AdamW. Models are written for speed
in plain PyTorch: fused qkv (Llama: fused qkv and gate+up too), batched-matmul attention, foreach AdamW. On a GPU
(--device cuda) torch.compile, scaled_dot_product_attention (FlashAttention) and fused AdamW. One JSON line.
"""
import argparse
import ctypes
import json
import math
import os
import statistics
import sys
import time

SHAPES = {
    #                   arch     L   C    NH  F     V      T    B   tied
    "gpt2-124M":       ("gpt2", 12, 768, 12, 3072, 50257, 256, 4, True),
    "gpt2-124M-T64":   ("gpt2", 12, 768, 12, 3072, 50257, 64, 4, True),
    "char":            ("gpt2", 6, 384, 6, 1536, 65, 256, 12, True),
    "llama-60M":       ("llama", 8, 512, 8, 1376, 32000, 256, 8, False),
    "gpt2-124M-T1024": ("gpt2", 12, 768, 12, 3072, 50257, 1024, 16, True),
    "llama-130M-T1024": ("llama", 12, 768, 12, 2048, 32000, 1024, 16, False),
    "llama-350M-T1024": ("llama", 24, 1024, 16, 2736, 32000, 1024, 16, False),
    "tiny":            ("gpt2", 2, 64, 2, 256, 65, 32, 2, True),  # only to see that this script works
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", choices=sorted(SHAPES), default="char")
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--bf16", dest="dtype", action="store_const", const="bf16", help="the same as --dtype bf16")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--steps", type=int, default=5, help="timed steps, after --warmup")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--attention", choices=["auto", "softmax", "baddbmm", "sdpa"], default="auto")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--json", action="store_true", help="JSON only, nothing on stderr")
    return p.parse_args()


def build(name, device):
    import torch
    import torch.nn.functional as F

    arch, L, C, NH, FF, V, T, B, tied = SHAPES[name]
    HS = C // NH
    params = {}

    def weight(key, out, inn):
        params[key] = torch.nn.Parameter(torch.randn(out, inn, device=device) * 0.02)

    def vector(key, n, value):
        params[key] = torch.nn.Parameter(torch.full((n,), value, device=device))

    weight("wte", V, C)
    if arch == "gpt2":
        weight("wpe", T, C)
    for i in range(L):
        weight(f"{i}.qkv", 3 * C, C)
        weight(f"{i}.o", C, C)
        weight(f"{i}.up", FF if arch == "gpt2" else 2 * FF, C)
        weight(f"{i}.down", C, FF)
        vector(f"{i}.n1", C, 1.0)
        vector(f"{i}.n2", C, 1.0)
        if arch == "gpt2":
            for key, n in (("qkv", 3 * C), ("o", C), ("up", FF), ("down", C), ("n1", C), ("n2", C)):
                vector(f"{i}.{key}.b", n, 0.0)
    vector("nf", C, 1.0)
    if arch == "gpt2":
        vector("nf.b", C, 0.0)
    if not tied:
        weight("head", V, C)

    mask = torch.full((T, T), -math.inf, device=device).triu(1)
    angle = torch.arange(T, device=device)[:, None] * 10000.0 ** (-torch.arange(0, HS, 2, device=device) / HS)
    cos, sin = torch.cat([angle.cos()] * 2, 1), torch.cat([angle.sin()] * 2, 1)

    def attention_softmax(q, k, v):  # [B*NH,T,HS]
        scores = torch.bmm(q * (1 / math.sqrt(HS)), k.transpose(1, 2)) + mask.to(q.dtype)
        return torch.bmm(torch.softmax(scores, -1), v)

    def attention_baddbmm(q, k, v):  # scale and mask within the product
        scores = torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2), alpha=1 / math.sqrt(HS))
        return torch.bmm(torch.softmax(scores, -1), v)

    def attention_sdpa(q, k, v):  # PyTorch 2; 4-D, or it does not take FlashAttention
        q, k, v = (x.view(B, NH, T, HS) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).reshape(B * NH, T, HS)

    attention = {"softmax": attention_softmax, "baddbmm": attention_baddbmm, "sdpa": attention_sdpa}

    def rotate(x):
        a, b = x.chunk(2, -1)
        return x * cos.to(x.dtype) + torch.cat([-b, a], -1) * sin.to(x.dtype)

    def norm(x, key):
        if arch == "gpt2":
            return F.layer_norm(x, (C,), params[key], params[key + ".b"])
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5) * params[key]

    def linear(x, key):
        return F.linear(x, params[key], params.get(key + ".b"))

    def forward(tokens, targets, attend):
        x = F.embedding(tokens, params["wte"])
        if arch == "gpt2":
            x = x + params["wpe"]
        for i in range(L):
            qkv = linear(norm(x, f"{i}.n1"), f"{i}.qkv").view(B, T, 3, NH, HS).permute(2, 0, 3, 1, 4)
            q, k, v = qkv.reshape(3, B * NH, T, HS).unbind(0)
            if arch == "llama":
                q, k = rotate(q), rotate(k)
            a = attention[attend](q, k, v).view(B, NH, T, HS).transpose(1, 2).reshape(B, T, C)
            x = x + linear(a, f"{i}.o")
            u = linear(norm(x, f"{i}.n2"), f"{i}.up")
            if arch == "gpt2":
                h = F.gelu(u, approximate="tanh")
            else:
                gate, up = u.chunk(2, -1)
                h = F.silu(gate) * up
            x = x + linear(h, f"{i}.down")
        logits = F.linear(norm(x, "nf"), params["wte" if tied else "head"])
        return F.cross_entropy(logits.view(B * T, V).float(), targets.view(-1))

    tokens, targets = (torch.randint(0, V, (B, T), device=device) for _ in range(2))
    return params, forward, tokens, targets, B * T


def linked_blas():
    """Name of the BLAS in this process's address space, with the core that OpenBLAS chose."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as f:
        paths = sorted({line.split()[-1] for line in f if ".so" in line and line.split()[-1].startswith("/")})
    found = []
    for path in paths:
        base = os.path.basename(os.path.realpath(path)).lower()
        # Debian's alternatives hide which library libblas.so.3 is; only OpenBLAS has get_corename.
        if "openblas" in path.lower() or base.startswith("libblas"):
            try:
                corename = ctypes.CDLL(path).openblas_get_corename
                corename.restype = ctypes.c_char_p
                found.append("OpenBLAS " + corename().decode())
            except (AttributeError, OSError):
                found.append("BLIS" if "blis" in path.lower() else "netlib" if base.startswith("libblas") else base)
        elif "blis" in path.lower():
            found.append("BLIS")
        elif "mkl_core" in base or "mkl_rt" in base:
            found.append("MKL")
    return " + ".join(dict.fromkeys(found)) or "unknown"


def adamw(params, variant):
    import torch

    groups = [{"params": [x for x in params.values() if x.dim() == 2], "weight_decay": 0.1},
              {"params": [x for x in params.values() if x.dim() != 2], "weight_decay": 0.0}]
    extra = {} if variant == "loop" else {variant: True}
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), **extra)


def fastest(candidates):
    """candidates: name -> factory of a function. The second of two calls counts: the first one allocates. What this
    version of PyTorch lacks for CPU tensors raises and is out."""
    times = {}
    for name, make in candidates.items():
        try:
            run = make()
            for _ in range(2):
                start = time.perf_counter()
                run()
                times[name] = time.perf_counter() - start
        except (AttributeError, TypeError, RuntimeError, ValueError):
            times.pop(name, None)
        run = None  # frees an optimizer's moments before the next one has its own
    return min(times, key=times.get)


def reset_peak_memory():
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as f:
            f.write("5")
    except OSError:
        pass  # then the peak includes the search for the fastest variant


def peak_memory():
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def best_openblas_kernels():
    """An OpenBLAS older than the CPU takes kernels of 2004 for it ("Prescott"), a sixth of the speed. Then starts this
    program again with those that its instruction set allows."""
    if "OPENBLAS_CORETYPE" in os.environ:
        return
    try:
        name = ctypes.CDLL("libopenblas.so.0").openblas_get_corename
        name.restype = ctypes.c_char_p
        unknown = name() == b"Prescott"
        with open("/proc/cpuinfo", encoding="ascii") as f:
            flags = next(line for line in f if line.startswith("flags")).split()
    except (OSError, AttributeError, StopIteration):
        return
    kernels = "SkylakeX" if "avx512vl" in flags else "Haswell" if "avx2" in flags else None
    if unknown and kernels:
        os.execve(sys.executable, [sys.executable, *sys.argv],
                  {**os.environ, "OPENBLAS_CORETYPE": kernels, "CHOSEN_CORETYPE": kernels})


def main():
    args = arguments()
    best_openblas_kernels()
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if variable in os.environ and "CHOSEN_CORETYPE" not in os.environ:
            print(f"torch_bench: {variable}={os.environ[variable]} is set: OpenBLAS does not choose its kernels "
                  "itself, which can halve its speed; unset it for a fair baseline", file=sys.stderr)
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(args.threads)  # before import
    # libgomp's threads spin between regions. On a machine with anything else to do that made a small step 25 times
    # slower; passive waiting costs microseconds on an idle one. The environment may still choose otherwise.
    wait_policy = os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    params, forward, tokens, targets, tokens_per_step = build(args.shape, args.device)
    cuda = args.device == "cuda"
    if cuda:
        forward = torch.compile(forward)
    autocast = lambda: torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.dtype == "bf16")  # noqa: E731

    def gradients(attend):
        for x in params.values():
            x.grad = None
        with autocast():
            loss = forward(tokens, targets, attend)
        loss.backward()
        return loss

    attend = "sdpa" if cuda and args.attention == "auto" else args.attention
    gradients("softmax" if attend == "auto" else attend)
    if attend == "auto":
        attend = fastest({name: lambda name=name: lambda: gradients(name) for name in ("softmax", "baddbmm", "sdpa")})
    variant = "fused" if cuda else fastest({name: lambda name=name: adamw(params, name).step for name in ("loop", "foreach", "fused")})
    optimizer = adamw(params, variant)
    reset_peak_memory()
    if cuda:
        torch.cuda.reset_peak_memory_stats()

    def step():
        loss = gradients(attend)
        torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
        optimizer.step()
        return loss.item()

    times = []
    for i in range(args.warmup + args.steps):
        start = time.perf_counter()
        loss = step()
        if i >= args.warmup:
            times.append(time.perf_counter() - start)
        if not args.json:
            print(f"step {i}: loss {loss:.4f}, {1e3 * (time.perf_counter() - start):.1f} ms", file=sys.stderr)
    seconds = statistics.median(times)
    print(json.dumps({
        "shape": args.shape, "dtype": args.dtype, "device": args.device, "threads": args.threads, "ms_per_step": round(1e3 * seconds, 2),
        "fastest_ms": round(1e3 * min(times), 2),
        "tokens_per_s": round(tokens_per_step / seconds, 1), "blas": linked_blas(),
        "peak_rss_bytes": peak_memory(), "peak_gpu_bytes": torch.cuda.max_memory_allocated() if cuda else 0, "torch": torch.__version__,
        "steps": args.steps, "attention": attend, "optimizer": variant,
        "omp_wait_policy": wait_policy, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
