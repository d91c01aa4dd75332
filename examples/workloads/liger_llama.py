"""Train a Llama-like model of transformers, patched by liger-kernel, for some steps.

    python examples/workloads/liger_llama.py --steps 3

The weights and tokens are random; nothing is downloaded. It needs transformers and liger-kernel.
Without a GPU the model is tiny and stays on the CPU, so that its launches can be recorded.
"""

import argparse

import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama

import workbench
import workbench.workload

apply_liger_kernel_to_llama()  # before the model's classes are used

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

LARGE = LlamaConfig(
    hidden_size=2048, intermediate_size=5632, num_hidden_layers=8, num_attention_heads=16,
    num_key_value_heads=8, vocab_size=32000, max_position_embeddings=2048,
)  # fmt: skip
TINY = LlamaConfig(
    hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, vocab_size=256, max_position_embeddings=64,
)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    gpu = torch.cuda.is_available()
    device, config = ("cuda", LARGE) if gpu else ("cpu", TINY)
    batch, length = (4, 2048) if gpu else (1, 16)
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, config.vocab_size, (batch, length), device=device)
    for _ in range(steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        workbench.workload.output("loss", loss)
        workbench.step()


if __name__ == "__main__":
    main()
