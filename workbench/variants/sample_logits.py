"""Top-k, top-p sampling of rows of logits, on the GPU and on the CPU: which is the sooner done?

k = 50, p = 0.9 and a temperature of 1 are known on both sides, so that logits alone travel. They
lie on the GPU, and the token must be there again, for it chooses the next input. So
`partials_and_merge` is the two launches of `sample_topk_topp`, and `cpu` copies the logits to the
CPU, samples there, and copies the token back.
"""

from functools import cache

import torch

from workbench.kernels import sample_topk_topp as sampler
from workbench.spec import Spec, Tensor

K, P, TEMPERATURE = 50, 0.9, 1.0
SEED = 0x5EED


def reference(logits):
    k, p, temperature, seed = settings(len(logits), logits.device)
    return sampler.reference(logits, k, p, temperature, seed)


@cache
def settings(rows, device):
    """k, p, temperature and seed of each row, made once: in use they lie where they are read."""
    return (
        torch.full((rows,), K, dtype=torch.int32, device=device),
        torch.full((rows,), P, dtype=torch.float32, device=device),
        torch.full((rows,), TEMPERATURE, dtype=torch.float32, device=device),
        torch.arange(SEED, SEED + rows, dtype=torch.int64, device=device),
    )


sample_logits = Spec(
    name="sample_logits",
    inputs={"logits": Tensor("B V")},
    outputs={"token": Tensor("B", dtype="int64")},
    reference=reference,
    flops=lambda B, V: 4 * B * V,
    check=[{"B": 1, "V": 1}, {"B": 3, "V": 127}, {"B": 2, "V": 700}],
    bench=[
        {"B": 1, "V": 32_000},
        {"B": 8, "V": 32_000},
        {"B": 1, "V": 128_256},
        {"B": 8, "V": 128_256},
    ],
)


@sample_logits.impl(sampler.GroupMaxima, refuse=sampler.refuse_group_maxima, work=sampler.work)
def partials_and_merge(logits, *, config):
    """`sample_topk_topp`: the maxima of groups of logits, then one program a row."""
    return sampler.group_maxima(logits, *settings(len(logits), logits.device), config=config)


@sample_logits.impl(backend="torch", name="cpu")
def on_the_cpu(logits):
    """All logits in one copy, each row sampled by torch on the CPU, all tokens in one copy."""
    rows = logits.cpu().float()
    tokens = [sample_token(row, SEED + i) for i, row in enumerate(rows)]
    return torch.tensor(tokens, dtype=torch.int64).to(logits.device)


def sample_token(row, seed):
    """The token of one row."""
    values, index = candidates(row)
    if not torch.isfinite(values[0]):
        return -1
    mass = ((values.double() - values[0]) / TEMPERATURE).exp().mul(2.0**30).add(0.5).floor().long()
    share = torch.tensor(P, dtype=torch.float32).double().mul(2.0**31).long()
    enough = sampler.part(mass.sum(), share).clamp(min=1)
    kept = torch.where(mass.cumsum(0) - mass < enough, mass, 0)
    token, place = torch.sort(index)
    running = kept[place].cumsum(0)
    aim = sampler.part(running[-1], sampler.philox(torch.tensor(seed)) >> 1)
    return int(token[int((running <= aim).sum())])


def candidates(row):
    """The K largest logits, from the largest on and of equal ones the first, and their indices.

    `topk` may choose any of equal ones. Twice as many as are wanted nearly always hold all that
    equal the last one wanted, and are sorted in no time; else the whole row is looked through."""
    V = len(row)
    values, index = torch.topk(row, min(2 * K, V))
    if len(values) < V and values[-1] == values[K - 1]:
        index = (row >= values[K - 1]).nonzero()[:, 0]
    index = index.sort().values
    ordered = torch.sort(row[index], descending=True, stable=True)
    return ordered.values[:K], index[ordered.indices[:K]]
