"""What sampling promises: tokens of the nucleus, in their proportions, whatever else is in the
batch and however a row is split.

Logits are multiples of 1/4 up to 6, which stay exact in bf16 when they are shifted.
"""

from typing import Any

import torch
from kernel_properties import INF, NAN, Subject, of

from workbench.measurement import inputs
from workbench.measurement.inputs import torch_dtype


def _given(s: Subject) -> tuple[Any, ...]:
    """Logits, p, temperatures and seeds; the last three as they are for a check."""
    _, *others = inputs.make(s.impl.spec, s.sizes, s.dtype, s.device, s.seed)
    return s.integers(-24, 24, "B", "V") / 4, *others


def _plain(s: Subject, B: int, *, p: float, heat: float = 1.0) -> tuple[Any, ...]:
    """p, temperatures and consecutive seeds of B equal rows."""
    seeds = torch.arange(B, device=s.device) + s.seed * B
    return *(torch.full((B,), value, device=s.device) for value in (p, heat)), seeds


def _in_nucleus(x: torch.Tensor, token: torch.Tensor, p: float) -> bool:
    ranked, order = x.double().sort(dim=1, descending=True, stable=True)
    share = ranked.softmax(1)
    before = share.cumsum(1) - share
    kept = before < p + 1e-6  # where the mass comes that close to p, either is right
    place = (order == token[:, None]) & kept
    return bool(place.any(1).all())


@of("sample_top_p")
def tokens_lie_in_the_nucleus(s: Subject) -> None:
    x = _given(s)[0]
    assert _in_nucleus(x, s(x, *_plain(s, len(x), p=0.6)), 0.6)


@of("sample_top_p")
def the_largest_is_taken_where_nothing_else_is_left(s: Subject) -> None:
    x = _given(s)[0]
    first = (x == x.amax(1, keepdim=True)).int().argmax(1)
    for plain in ({"p": 0.0}, {"p": 1.0, "heat": 0.0}):
        assert torch.equal(s(x, *_plain(s, len(x), **plain)), first)


@of("sample_top_p")
def a_shift_changes_no_token(s: Subject) -> None:
    x, *others = _given(s)
    token = s(x, *others)
    for shift in (-10.0, 0.25):
        assert torch.equal(s(x + shift, *others), token)


@of("sample_top_p")
def masked_logits_are_never_drawn(s: Subject) -> None:
    x, *_ = _given(s)
    masked = torch.arange(x.shape[1], device=s.device) % 3 != s.sizes["V"] // 2 % 3
    x = torch.where(masked, -INF, x)
    token = s(x, *_plain(s, len(x), p=1.0, heat=2.0))
    if x.shape[1] > 2:
        assert not bool(masked[token].any())


@of("sample_top_p")
def rows_without_a_distribution_give_minus_one(s: Subject) -> None:
    x, *others = _given(s)
    x = x[:1].repeat(5, 1)
    x[0, -1], x[1, 0], x[2] = NAN, INF, -INF
    x[3, :-1] = -INF  # one is left
    others = [other[:1].repeat(5) for other in others]
    s.verify(x, *others)
    token = s(x, *others)
    assert token[:4].tolist() == [-1, -1, -1, x.shape[1] - 1]
    assert int(token[4]) >= 0


@of("sample_top_p")
def a_row_does_not_see_its_batch(s: Subject) -> None:
    x, *others = _given(s)
    token = s(x, *others)
    back = [t.flip(0) for t in (x, *others)]
    assert torch.equal(s(*back).flip(0), token)
    half = [t[len(t) // 2 :] for t in (x, *others)]
    assert torch.equal(s(*half), token[len(token) // 2 :])


def _alike(one: Any, other: Any) -> bool:
    """In what is no split of a row: threads, and what not every GPU has."""
    names = ("sample_warps", "pdl", "maxnreg")
    return all(getattr(one, k, None) == getattr(other, k, None) for k in names)


@of("sample_top_p")
def a_row_does_not_see_how_it_is_split(s: Subject) -> None:
    given = _given(s)
    token = s(*given)
    space = [c for c in s.impl.space(s.impl.config()) if _alike(c, s.config)]
    assert torch.equal(s.impl(*given, config=space[s.seed % len(space)]), token)


@of("sample_top_p")
def rows_of_few_or_of_close_values_are_right(s: Subject) -> None:
    """Many ties, one value, a row so flat that its edge is hard to guess, and one so steep that few
    tokens are left: the edge is counted, listed, or sought in the row."""
    x = _given(s)[0][:1].double()
    x = torch.cat([x * 4, x * 0 + 3, x / 1000, x * 40]).to(torch_dtype(s.dtype))
    plain = _plain(s, len(x), p=0.7)
    token = s(x, *plain)
    assert _in_nucleus(x, token, 0.7)
    assert torch.equal(s.impl(x, *plain, config=s.impl.config()), token)


@of("sample_top_p")
def temperatures_divide_the_logits(s: Subject) -> None:
    """By powers of two no bit is lost, and a quarter of 6 is as well told apart as 6."""
    x = _given(s)[0][:2]
    for heat in (0.25, 2.0**-6):
        token = s(x, *_plain(s, len(x), p=0.95, heat=heat))
        assert torch.equal(s(x / heat, *_plain(s, len(x), p=0.95)), token)


@of("sample_top_p", own_sizes=True)
def zeros_of_either_sign_are_one_value(s: Subject) -> None:
    """Equal logits go by their place. Of four with a quarter of the mass each, two are kept; in a
    long row too, whose edge is sought in another way."""
    for V in (16, 600):
        x = _given(s)[0].new_full((4, V), -60.0)
        x[:, :4] = 0.0
        mixed, other = x.clone(), x.clone()
        mixed[:, :3:2], other[:, 1:4:2] = -0.0, -0.0
        plain = _plain(s, len(x), p=0.45)
        token = s(mixed, *plain)
        assert torch.equal(token, s(x, *plain)) and int(token.max()) <= 1
        assert torch.equal(token, s(other, *plain))


@of("sample_top_p", own_sizes=True)
def ties_at_the_edge_go_by_their_place(s: Subject) -> None:
    """Half of the mass is that of the largest, which comes last, and of the first of four that are
    equal: those behind it are out, though they lie ahead of the largest."""
    for V in (16, 600):
        x = _given(s)[0].new_full((8, V), -60.0)
        x[:, :4], x[:, 10] = 0.0, 1.0
        token = s(x, *_plain(s, len(x), p=0.5))
        assert set(token.tolist()) <= {0, 10}


@of("sample_top_p", own_sizes=True)
def draws_follow_the_softmax(s: Subject) -> None:
    """Pearson's test: of 20000 draws among 16 on a GPU, and of 64 among 4 in the interpreter, which
    takes milliseconds for each."""
    B, V, most = (20_000, 16, 62) if s.device == "cuda" else (64, 4, 35)
    x = torch.linspace(0, 3, V, device=s.device).to(torch_dtype(s.dtype)).expand(B, V)
    plain = _plain(s, B, p=1.0)
    drawn = s(x, *plain)
    assert torch.equal(drawn, s.impl.spec.reference(x.float(), *plain))
    expected = x[0].double().softmax(0) * B
    off = (drawn.bincount(minlength=V) - expected).square() / expected
    assert float(off.sum()) < most  # 15 or 3 degrees of freedom: once in 10 million seeds
