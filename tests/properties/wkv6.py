"""What RWKV-6's recurrence promises, whatever the tokens are grouped by."""

import torch
from kernel_properties import NAN, Subject, bits, of


@of("wkv6", dtypes="fp32")
def both_outputs_keep_fp32(s: Subject) -> None:
    made = s.inputs()
    wanted = s.impl.spec.reference(*(x.double() for x in made))
    for actual, expected in zip(s(*made), wanted, strict=True):
        assert s.near(actual, expected)


@of("wkv6")
def parts_of_a_sequence_are_its_parts(s: Subject) -> None:
    *tokens, u, state = s.inputs()
    tokens = [torch.cat([x, x.flip(1)], dim=1) for x in tokens]
    cut = tokens[0].shape[1] // 3 + 1
    whole, end = s(*tokens, u, state)
    first, between = s(*(x[:, :cut] for x in tokens), u, state)
    second, last = s(*(x[:, cut:] for x in tokens), u, between)
    parts = torch.cat([first, second], dim=1)
    if s.impl.name == "sequential":
        assert torch.equal(bits(parts), bits(whole)) and torch.equal(bits(last), bits(end))
    else:
        assert s.near(parts, whole) and s.near(last, end)


@of("wkv6")
def without_decay_it_is_linear_attention(s: Subject) -> None:
    axes = "B", "T", "H", "N"
    k, v = s.integers(-1, 1, *axes), s.integers(-1, 1, *axes).flip(1)
    r = (s.integers(0, 63, "B", "T", "H")[..., None] == torch.arange(64, device=s.device)).to(k)
    u, state = s.integers(-2, 2, "H", "N"), s.integers(-9, 9, "B", "H", "N", "N").float()
    made = r, torch.zeros_like(k), k, v, u, state
    wanted = s.impl.spec.reference(*(x.double() for x in made))
    for actual, exact in zip(s(*made), wanted, strict=True):
        assert torch.equal(actual.double(), exact)


@of("wkv6")
def it_is_linear_in_values_and_state(s: Subject) -> None:
    r, w, k, v, u, state = s.inputs()
    once, twice = s(r, w, k, v, u, state), s(r, w, k, 4 * v, u, 4 * state)
    if s.dtype == "fp16":  # whose small numbers have fewer bits
        assert all(s.near(b, 4 * a) for a, b in zip(once, twice, strict=True))
    else:
        assert all(torch.equal(4 * a, b) for a, b in zip(once, twice, strict=True))


@of("wkv6")
def what_comes_later_changes_nothing_before(s: Subject) -> None:
    *tokens, u, state = s.inputs()
    half = tokens[0].shape[1] // 2
    y, _ = s(*tokens, u, state)
    for x in tokens:
        x[:, half:] = x[:, half:].flip(-1)
    assert torch.equal(bits(s(*tokens, u, state)[0][:, :half]), bits(y[:, :half]))


@of("wkv6")
def without_keys_the_state_decays(s: Subject) -> None:
    r, w, k, v, u, state = s.inputs()
    _, last = s(r, w, k * 0, v, u, state)
    left = state.double() * w.double().sum(1).exp()[..., None]
    assert torch.allclose(last.double(), left, rtol=1e-3, atol=1e-30)


@of("wkv6")
def decays_may_be_as_strong_as_they_like(s: Subject) -> None:
    r, w, k, v, u, state = s.inputs()
    w[..., ::2] = -30_000  # forgotten at once, however the exponents are grouped
    w[..., 1::4] = -40
    s.verify(r, w, k, v, u, state)


@of("wkv6")
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
