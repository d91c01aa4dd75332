"""What attention of one new token promises, however its keys are split among programs."""

from dataclasses import fields, replace

import torch
from kernel_properties import NAN, ROUNDING, Subject, bits, of


def _lens(s: Subject, *values: int):
    """These lengths in turn."""
    B = s.sizes["B"]
    return torch.tensor([values[b % len(values)] for b in range(B)], dtype=torch.int32).to(s.device)


def _dealt(s: Subject):
    q, k = s.integers(-2, 2, "B", "Hkv*G", "D"), s.integers(-2, 2, "B", "T", "Hkv", "D")
    return q, k, s.integers(-4, 4, "B", "T", "Hkv", "D")


@of("decode_attention")
def keys_beyond_the_length_do_not_exist(s: Subject) -> None:
    """Not even when they are NaN, as fresh memory may be."""
    q, k, v, _ = s.inputs()
    n = 1 + s.seed % s.sizes["T"]
    lens = _lens(s, n, 1)
    o = bits(s(q, k, v, lens))
    at = torch.arange(s.sizes["T"], device=s.device)
    beyond = (at >= lens[:, None])[..., None, None]
    assert torch.equal(bits(s(q, k.masked_fill(beyond, NAN), v.masked_fill(beyond, NAN), lens)), o)


@of("decode_attention")
def no_key_is_zero_and_one_key_is_its_value(s: Subject) -> None:
    q, k, v, _ = s.inputs()
    o = s(q, k, v, _lens(s, 0, 1))
    assert bool((o[::2] == 0).all())
    assert torch.equal(o[1::2], v[1::2, 0].repeat_interleave(s.sizes["G"], 1))


@of("decode_attention")
def a_longer_length_than_the_cache_is_the_cache(s: Subject) -> None:
    q, k, v, _ = s.inputs()
    T = s.sizes["T"]
    full = s(q, k, v, _lens(s, T))
    assert torch.equal(bits(s(q, k, v, _lens(s, T + 1, 2**31 - 1))), bits(full))


@of("decode_attention")
def equal_scores_are_a_mean(s: Subject) -> None:
    q, k, v = _dealt(s)
    n = 1 + s.seed % s.sizes["T"]
    o = s(torch.zeros_like(q), k, v, _lens(s, n)).double()
    mean = v[:, :n].double().mean(1).repeat_interleave(s.sizes["G"], 1)
    assert float((o - mean).abs().max()) <= 4 * (2 * ROUNDING[s.dtype] + 2.0**-20)


def _few(s: Subject, extreme=min):
    """The shortest blocks of keys, and the fewest programs (or the most): a program takes several
    blocks, and not all the same number."""
    choices = {f.name: f.metadata["choices"] for f in fields(s.config)}
    programs = extreme(choices["programs_per_core"])
    return replace(s.config, block_n=min(choices["block_n"]), programs_per_core=programs)


@of("decode_attention")
def a_key_far_ahead_takes_all(s: Subject) -> None:
    """One key scores 128 and more above all others, whose weights vanish: its values come out bit
    for bit, in whichever share it lies, and wherever among the blocks of a share."""
    q, k, v = _dealt(s)
    q[..., 0], q[..., 1:] = 64, 0
    for at, config in ((s.seed % s.sizes["T"], s.config), (0, _few(s))):
        k[..., 0] = 0
        k[:, at, :, 0] = 32
        o = s.impl(q, k, v, _lens(s, s.sizes["T"]), config=config)
        assert torch.equal(o, v[:, at].repeat_interleave(s.sizes["G"], 1))


@of("decode_attention")
def any_split_is_the_whole(s: Subject) -> None:
    q, k, v, lens = s.inputs()
    o = s(q, k, v, lens).double()
    for config in (_few(s), _few(s, max)):
        off = (s.impl(q, k, v, lens, config=config).double() - o).abs().max()
        assert float(off) <= 4 * float(v.abs().max()) * (ROUNDING[s.dtype] + 2.0**-20)


@of("decode_attention")
def sequences_and_heads_do_not_meet(s: Subject) -> None:
    q, k, v, lens = s.inputs()
    o, G = s(q, k, v, lens), s.sizes["G"]
    flipped = s(q.flip(0), k.flip(0), v.flip(0), lens.flip(0))
    assert torch.equal(bits(flipped.flip(0)), bits(o))
    v[:, :, -1] = -v[:, :, -1]
    changed = s(q, k, v, lens)
    assert torch.equal(bits(changed[:, :-G]), bits(o[:, :-G]))
    assert torch.equal(changed[:, -G:], -o[:, -G:])


@of("decode_attention")
def nan_stays_in_its_head(s: Subject) -> None:
    q, k, v, _ = s.inputs()
    n = 1 + s.seed % s.sizes["T"]
    k[0, n - 1, 0, -1] = NAN
    o, G = s(q, k, v, _lens(s, n)), s.sizes["G"]
    assert bool(o[0, :G].isnan().all())
    o[0, :G] = 0
    assert bool(o.isfinite().all())
