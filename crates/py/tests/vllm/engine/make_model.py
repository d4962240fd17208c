"""Makes a small Llama with random weights and a tokenizer: nothing is fetched.

python make_model.py FOLDER

The weights are spread so far that logits are peaked: with vLLM's own dummy weights they are uniform, and any cache would seem right. They are of 32
bits, since a cold and a warm request add in another order, and with 16 bits the difference may choose another token.
"""

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 2048


def main(folder):
    torch.manual_seed(7)
    words = {f"w{n}": n for n in range(WORDS - 3)} | {"<unk>": WORDS - 3, "<s>": WORDS - 2, "</s>": WORDS - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=8192,
        initializer_range=0.08,
        bos_token_id=WORDS - 2,
        eos_token_id=WORDS - 1,
        dtype=torch.float32,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
