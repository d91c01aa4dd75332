import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scaled_softplus(x_ptr, w_ptr, y_ptr, scale, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + n, mask=n < N)
        w = tl.load(w_ptr + n, mask=n < N)
        y = tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))
        tl.store(y_ptr + row * N + n, y * w * scale, mask=n < N)


class ModelNew(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_features))

    def forward(self, x, scale):
        assert x.is_cuda and self.weight.is_cuda
        x = x.contiguous()
        y = torch.empty_like(x)
        scaled_softplus[(x.shape[0],)](x, self.weight, y, scale, x.shape[1], BLOCK=1024)
        return y
