import torch
import torch.nn as nn


class Model(nn.Module):
    """Return softplus(x) times a weight of each column and a number."""

    def __init__(self, num_features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_features))

    def forward(self, x, scale):
        return torch.nn.functional.softplus(x) * self.weight * scale


batch_size = 4096
num_features = 8192


def get_inputs():
    return [torch.randn(batch_size, num_features), 0.5]


def get_init_inputs():
    return [num_features]
