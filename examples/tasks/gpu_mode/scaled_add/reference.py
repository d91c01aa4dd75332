import torch
from task import input_t, output_t
from utils import make_match_reference


def ref_kernel(data: input_t) -> output_t:
    a, b, out = data
    out[...] = 2 * a + b
    return out


def generate_input(rows: int, columns: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    a = torch.randn(rows, columns, device="cuda", dtype=torch.float16, generator=gen)
    b = torch.randn(rows, columns, device="cuda", dtype=torch.float16, generator=gen)
    out = torch.empty(rows, columns, device="cuda", dtype=torch.float16)
    return a, b, out


check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-3)
