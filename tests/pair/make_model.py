"""Run with an engine's python: writes the model and its tokenizer into the folder named on the command line.

The weights are random but large, so outputs depend on prompts and a comparison of outputs says something about the KV
they came from. With sglang's own dummy weights greedy output is token 0 whatever the prompt.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

SPECIALS = ("<pad>", "<s>", "</s>")
SEED = 20_518


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, no merges: one ASCII character is one token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *letters])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    pad, bos, eos = SPECIALS
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token=pad, bos_token=bos, eos_token=eos)


def model() -> OPTForCausalLM:
    torch.manual_seed(SEED)
    config = OPTConfig(
        hidden_size=128,
        ffn_dim=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=512,
        max_position_embeddings=131_072,
        word_embed_proj_dim=128,
        do_layer_norm_before=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        init_std=0.3,
    )
    return OPTForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    folder = sys.argv[1]
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
