"""PyTorch's scaled_dot_product_attention on the shapes of bench_decode: one
query a sequence, FP16 keys and values, contiguous; then the first of
bench_prompt, causal, beside a product of BF16 matrices. Medians of 40 calls, timed
with events, four tensors in turn. Run by run.sh."""
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [(64, 4096, 32, 8), (128, 4096, 32, 8), (8, 32768, 32, 8),
          (1, 131072, 32, 8), (64, 4096, 28, 4), (64, 4096, 40, 8)]
BACKENDS = [("cuDNN", SDPBackend.CUDNN_ATTENTION),
            ("Flash", SDPBackend.FLASH_ATTENTION)]


def median_us(call, runs=40, warm=8):
    times = []
    for i in range(warm + runs):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        call(i)
        b.record()
        b.synchronize()
        if i >= warm:
            times.append(a.elapsed_time(b) * 1e3)
    return sorted(times)[runs // 2]


def main():
    torch.manual_seed(0)
    for seqs, length, heads, lists in SHAPES:
        shape = (seqs, lists, length, 128)
        kv = [[torch.randn(shape, device="cuda", dtype=torch.float16)
               for _ in range(2)] for _ in range(4)]
        q = torch.randn(seqs, heads, 1, 128, device="cuda",
                        dtype=torch.float16)
        for name, backend in BACKENDS:
            try:
                with sdpa_kernel(backend):
                    us = median_us(
                        lambda i: torch.nn.functional
                        .scaled_dot_product_attention(q, *kv[i % 4],
                                                      enable_gqa=True))
                note = f"{us:7.1f} us"
            except RuntimeError as e:
                note = "refused: " + str(e).splitlines()[0]
            print(f"SDPA {name:5} {heads}/{lists} heads {seqs:4} x {length:6}  "
                  f"{note}", flush=True)
        del kv


def prompt(length=8192, heads=32, lists=8, dim=128):
    a, b = (torch.randn(length, length, device="cuda", dtype=torch.bfloat16)
            for _ in range(2))
    us = median_us(lambda i: a @ b)
    print(f"BF16 matrices of {length}  {2 * length ** 3 / us * 1e-6:5.0f} "
          "TFLOP/s", flush=True)
    q, k, v = (torch.randn(1, n, length, dim, device="cuda",
                           dtype=torch.float16) for n in (heads, lists, lists))
    flop = 2 * dim * heads * length * (length + 1)
    for name, backend in BACKENDS:
        try:
            with sdpa_kernel(backend):
                us = median_us(
                    lambda i: torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=True, enable_gqa=True))
            note = f"{us:7.1f} us  {flop / us * 1e-6:5.0f} TFLOP/s"
        except RuntimeError as e:
            note = "refused: " + str(e).splitlines()[0]
        print(f"SDPA {name:5} {heads}/{lists} heads causal {length}  {note}",
              flush=True)


print("PyTorch", torch.__version__)
main()
prompt()
