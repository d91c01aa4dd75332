"""What RWKV-7's recurrence promises, whatever the tokens are grouped by."""

import torch
from kernel_properties import NAN, Subject, bits, of


@of("wkv7", dtypes="fp32")
def both_outputs_keep_fp32(s: Subject) -> None:
    made = s.inputs()
    wanted = s.impl.spec.reference(*(x.double() for x in made))
    for actual, expected in zip(s(*made), wanted, strict=True):
        assert s.near(actual, expected)


@of("wkv7")
def parts_of_a_sequence_are_its_parts(s: Subject) -> None:
    *tokens, state = s.inputs()
    tokens = [torch.cat([x, x.flip(1)], dim=1) for x in tokens]
    cut = tokens[0].shape[1] // 3 + 1
    whole, end = s(*tokens, state)
    first, between = s(*(x[:, :cut] for x in tokens), state)
    second, last = s(*(x[:, cut:] for x in tokens), between)
    parts = torch.cat([first, second], dim=1)
    if s.impl.name == "sequential":
        assert torch.equal(bits(parts), bits(whole)) and torch.equal(bits(last), bits(end))
    else:
        assert s.near(parts, whole) and s.near(last, end)


@of("wkv7")
def without_decay_and_removal_it_is_linear_attention(s: Subject) -> None:
    axes = "B", "T", "H", "N"
    k, v = s.integers(-1, 1, *axes), s.integers(-1, 1, *axes).flip(1)
    r = (s.integers(0, 63, "B", "T", "H")[..., None] == torch.arange(64, device=s.device)).to(k)
    state = s.integers(-9, 9, "B", "H", "N", "N").float()
    made = r, torch.zeros_like(k), k, v, s.inputs()[4], torch.zeros_like(k), state
    wanted = s.impl.spec.reference(*(x.double() for x in made))
    for actual, exact in zip(s(*made), wanted, strict=True):
        assert torch.equal(actual.double(), exact)


@of("wkv7")
def what_was_written_is_what_is_removed(s: Subject) -> None:
    # All tokens have the key (1, 0, ...) and a = 1: each replaces the value of the one before.
    w = s.inputs()[1] * 0
    key, rate, v = torch.zeros_like(w), torch.ones_like(w), s.integers(-1, 1, "B", "T", "H", "N")
    key[..., 0] = 1
    state = s.integers(-9, 9, "B", "H", "N", "N").float()
    y, last = s(key, w, key, v, key, rate, state)
    assert torch.equal(y, v)
    assert torch.equal(last[..., 0].double(), v[:, -1].double())
    assert torch.equal(last[..., 1:], state[..., 1:])


@of("wkv7")
def it_is_linear_in_values_and_state(s: Subject) -> None:
    r, w, k, v, kk, a, state = s.inputs()
    once, twice = s(r, w, k, v, kk, a, state), s(r, w, k, 4 * v, kk, a, 4 * state)
    if s.dtype == "fp16":  # whose small numbers have fewer bits
        assert all(s.near(b, 4 * a) for a, b in zip(once, twice, strict=True))
    else:
        assert all(torch.equal(4 * a, b) for a, b in zip(once, twice, strict=True))


@of("wkv7")
def what_comes_later_changes_nothing_before(s: Subject) -> None:
    *tokens, state = s.inputs()
    half = tokens[0].shape[1] // 2
    y, _ = s(*tokens, state)
    for x in tokens:
        x[:, half:] = x[:, half:].flip(-1)
    assert torch.equal(bits(s(*tokens, state)[0][:, :half]), bits(y[:, :half]))


@of("wkv7")
def without_keys_the_state_only_shrinks(s: Subject) -> None:
    r, w, k, v, kk, a, state = s.inputs()
    _, last = s(r, w, k * 0, v, kk, a, state)
    assert float(last.norm()) <= 1.02 * float(state.norm())
    _, last = s(r, w, k * 0, v, kk, a * 0, state)
    left = state.double() * w.double().sum(1).exp()[:, :, None, :]
    assert torch.allclose(last.double(), left, rtol=1e-3, atol=1e-30)


@of("wkv7")
def nan_stays_in_its_sequence_and_head(s: Subject) -> None:
    made = s.inputs()
    kept = [x.clone() for x in s(*made)]
    v, at = made[3], s.seed % s.sizes["T"]
    v[0, at, 0, 0] = NAN
    y, state = s(*made)
    assert bool(y[0, at:, 0, 0].isnan().all()) and bool(state[0, 0].isnan().any())
    for actual, expected, head in ((y, kept[0], (0, slice(None), 0)), (state, kept[1], (0, 0))):
        actual[head] = expected[head] = 0
        assert torch.equal(bits(actual), bits(expected))
