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
    """Logits, k, p, temperatures and seeds; the last four as they are for a check."""
    _, *others = inputs.make(s.impl.spec, s.sizes, s.dtype, s.device, s.seed)
    return s.integers(-24, 24, "B", "V") / 4, *others


def _plain(s: Subject, B: int, *, k: int, p: float, heat: float = 1.0) -> tuple[Any, ...]:
    """k, p, temperatures and consecutive seeds of B equal rows."""
    seeds = torch.arange(B, device=s.device) + s.seed * B
    kinds = ((k, torch.int32), (p, torch.float32), (heat, torch.float32))
    return *(torch.full((B,), value, dtype=kind, device=s.device) for value, kind in kinds), seeds


@of("sample_topk_topp")
def tokens_lie_in_the_nucleus(s: Subject) -> None:
    x = _given(s)[0]
    B, k, p = len(x), 5, 0.6
    token = s(x, *_plain(s, B, k=k, p=p))
    ranked, order = x.double().sort(dim=1, descending=True, stable=True)
    share = ranked[:, :k].softmax(1)
    before = share.cumsum(1) - share
    kept = before < p + 1e-6  # where the mass comes that close to p, either is right
    place = (order[:, :k] == token[:, None]) & kept
    assert bool(place.any(1).all())


@of("sample_topk_topp")
def the_largest_is_taken_where_nothing_else_is_left(s: Subject) -> None:
    x = _given(s)[0]
    first = (x == x.amax(1, keepdim=True)).int().argmax(1)
    for plain in ({"k": 1, "p": 1.0}, {"k": 9, "p": 0.0}, {"k": 0, "p": 1.0, "heat": 0.0}):
        assert torch.equal(s(x, *_plain(s, len(x), **plain)), first)


@of("sample_topk_topp")
def a_shift_changes_no_token(s: Subject) -> None:
    x, *others = _given(s)
    token = s(x, *others)
    for shift in (-10.0, 0.25):
        assert torch.equal(s(x + shift, *others), token)


@of("sample_topk_topp")
def masked_logits_are_never_drawn(s: Subject) -> None:
    x, *_ = _given(s)
    masked = torch.arange(x.shape[1], device=s.device) % 3 != s.sizes["V"] // 2 % 3
    x = torch.where(masked, -INF, x)
    token = s(x, *_plain(s, len(x), k=50, p=1.0, heat=2.0))
    if x.shape[1] > 2:
        assert not bool(masked[token].any())


@of("sample_topk_topp")
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


@of("sample_topk_topp")
def a_row_does_not_see_its_batch(s: Subject) -> None:
    x, *others = _given(s)
    token = s(x, *others)
    back = [t.flip(0) for t in (x, *others)]
    assert torch.equal(s(*back).flip(0), token)
    half = [t[len(t) // 2 :] for t in (x, *others)]
    assert torch.equal(s(*half), token[len(token) // 2 :])


def _alike(one: Any, other: Any) -> bool:
    """In what is no split of a row: threads, and what not every GPU has."""
    return all(getattr(one, k, None) == getattr(other, k, None) for k in ("merge_warps", "pdl"))


@of("sample_topk_topp")
def a_row_does_not_see_how_it_is_split(s: Subject) -> None:
    given = _given(s)
    token = s(*given)
    space = [c for c in s.impl.space(s.impl.config()) if _alike(c, s.config)]
    assert torch.equal(s.impl(*given, config=space[s.seed % len(space)]), token)


@of("sample_topk_topp")
def no_top_k_has_three_spellings(s: Subject) -> None:
    x, k, *others = _given(s)
    V = x.shape[1]
    x, k, others = x[:2], k[:2], [o[:2] for o in others]
    tokens = [s(x, torch.full_like(k, none), *others) for none in (-1, V, V + 7)]
    assert torch.equal(tokens[0], tokens[1]) and torch.equal(tokens[0], tokens[2])


@of("sample_topk_topp")
def temperatures_divide_the_logits(s: Subject) -> None:
    """By powers of two no bit is lost, and a quarter of 6 is as well told apart as 6."""
    x = _given(s)[0][:2]
    for heat in (0.25, 2.0**-6):
        token = s(x, *_plain(s, len(x), k=0, p=0.95, heat=heat))
        assert torch.equal(s(x / heat, *_plain(s, len(x), k=0, p=0.95)), token)


@of("sample_topk_topp", own_sizes=True)
def zeros_of_either_sign_are_one_value(s: Subject) -> None:
    """Equal logits go by their place. Of four with a quarter of the mass each, two are kept; in a
    long row too, whose edge is sought in another way."""
    for V in (16, 600):
        x = _given(s)[0].new_full((4, V), -60.0)
        x[:, :4] = 0.0
        mixed, other = x.clone(), x.clone()
        mixed[:, :3:2], other[:, 1:4:2] = -0.0, -0.0
        plain = _plain(s, len(x), k=0, p=0.45)
        token = s(mixed, *plain)
        assert torch.equal(token, s(x, *plain)) and int(token.max()) <= 1
        assert torch.equal(token, s(other, *plain))


@of("sample_topk_topp", own_sizes=True)
def ties_at_the_edge_go_by_their_place(s: Subject) -> None:
    """Half of the mass is that of the largest, which comes last, and of the first of four that are
    equal: those behind it are out, though they lie ahead of the largest."""
    for V in (16, 600):
        x = _given(s)[0].new_full((8, V), -60.0)
        x[:, :4], x[:, 10] = 0.0, 1.0
        token = s(x, *_plain(s, len(x), k=0, p=0.5))
        assert set(token.tolist()) <= {0, 10}


@of("sample_topk_topp", own_sizes=True)
def draws_follow_the_softmax(s: Subject) -> None:
    """Pearson's test: of 20000 draws among 16 on a GPU, and of 64 among 4 in the interpreter, which
    takes milliseconds for each."""
    B, V, most = (20_000, 16, 62) if s.device == "cuda" else (64, 4, 35)
    x = torch.linspace(0, 3, V, device=s.device).to(torch_dtype(s.dtype)).expand(B, V)
    plain = _plain(s, B, k=0, p=1.0)
    drawn = s(x, *plain)
    assert torch.equal(drawn, s.impl.spec.reference(x.float(), *plain))
    expected = x[0].double().softmax(0) * B
    off = (drawn.bincount(minlength=V) - expected).square() / expected
    assert float(off.sum()) < most  # 15 or 3 degrees of freedom: once in 10 million seeds
