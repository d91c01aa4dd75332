"""What unpacking Q4_K promises: gguf's weights to the last bit, whatever the bytes are."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_properties import INF, NAN, Subject, bits, of

from workbench.measurement.inputs import torch_dtype

GOLDEN = Path(__file__).parents[1] / "golden" / "q4_k.npz"


def _gain(s: Subject, rows: int) -> Any:
    return torch.ones(rows, device=s.device, dtype=torch_dtype(s.dtype))


def _block(codes: Any, nibbles: Any, d: float = 1.0, dmin: float = 1.0) -> Any:
    """Blocks [N, 144] from codes [N, 12] and nibbles [N, 128], all bytes."""
    head = torch.tensor([d, dmin], device=codes.device).half().view(torch.uint8)
    return torch.cat([head.expand(len(codes), 4), codes, nibbles], -1)


@of("q4_k_dequantize")
def the_weights_of_gguf_to_the_last_bit(s: Subject) -> None:
    with np.load(GOLDEN) as golden:
        w, weights = (torch.from_numpy(golden[n]).to(s.device) for n in ("blocks", "weights"))
    y = s(w, _gain(s, len(w)))
    if s.dtype == "fp32":
        assert torch.equal(bits(y), bits(weights))
    else:
        s.verify(w, _gain(s, len(w)))


@of("q4_k_dequantize")
def every_nibble_has_its_place(s: Subject) -> None:
    weights = torch.arange(256, device=s.device)
    q = (weights * 7 + weights // 16 + s.seed) % 16
    pairs = q.reshape(4, 2, 32)
    nibbles = (pairs[:, 0] | pairs[:, 1] << 4).reshape(1, 128).to(torch.uint8)
    one = torch.zeros(1, 12, dtype=torch.uint8, device=s.device)
    one[:, :4], one[:, 8:] = 1, 1  # all scales 1, all minima 0
    y = s(_block(one, nibbles), _gain(s, 1))
    assert torch.equal(y.long(), q[None])


@of("q4_k_dequantize")
def every_scale_and_minimum_has_its_place(s: Subject) -> None:
    j = torch.arange(8, device=s.device)
    scale, minimum = (j * 9 + s.seed) % 64, (j * 23 + s.seed + 5) % 64
    low, high = scale[:4], scale[4:]
    under, over = minimum[:4], minimum[4:]
    codes = [low | high >> 4 << 6, under | over >> 4 << 6, high & 15 | (over & 15) << 4]
    nibbles = torch.full((1, 128), 0x11, dtype=torch.uint8, device=s.device)  # all weights 1
    y = s(_block(torch.cat(codes).to(torch.uint8)[None], nibbles), _gain(s, 1))
    assert torch.equal(y.long(), (scale - minimum).repeat_interleave(32)[None])


@of("q4_k_dequantize")
def powers_of_two_pass_through(s: Subject) -> None:
    w, _ = s.inputs()
    one = _gain(s, len(w))
    y = s(w, one)
    for power in (-2, 0.5, 4):
        assert torch.equal(s(w, one * power), y * power)


@of("q4_k_dequantize")
def infinities_and_nan_stay_in_their_blocks_and_rows(s: Subject) -> None:
    w, _ = s.inputs()
    w, gain = w.repeat(3, 1), _gain(s, 3 * len(w))
    w[0, :2] = torch.tensor([INF]).half().view(torch.uint8).to(w.device)
    w[1, -142:-140] = torch.tensor([NAN]).half().view(torch.uint8).to(w.device)
    gain[2] = NAN
    s.verify(w, gain)
    y = s(w, gain)
    assert not bool(y[0, :256].isfinite().any()) and bool(y[1, -256:].isnan().all())
    assert bool(y[2].isnan().all()) and bool(y[3:].isfinite().all())
