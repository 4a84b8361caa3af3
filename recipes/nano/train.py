"""Make the embedded model `nano` from nothing: tokenizer, corpus, training, Hugging Face folder.

    python recipes/nano/train.py OUT [--seed 0] [--device cuda] [--steps 7000]

The same seed and device give the same model. Three minutes on a data-centre GPU; about three hours on two CPU cores.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parent))
from corpus import Conversation, converse

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LENGTH = 256  # longest conversation, in tokens
PROMPT_WEIGHT = 0.1  # of the loss on a prompt's tokens, beside 1 on the reply's


def parts(conversation: Conversation) -> tuple[str, str]:
    prompt = f"{START}system\n{conversation.system}{END}\n{START}user\n{conversation.user}{END}\n{START}assistant\n"
    return prompt, conversation.reply + END


def train_tokenizer(seed: int, vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE: single digits, no token across words, any text can be written."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d| ?\p{L}+|[^\p{L}\d]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(f"tokenizer/{seed}")
    texts = (
        text
        for _ in range(20_000)
        for c in [converse(rng)]
        for text in (c.system, c.user, c.reply, "system\nuser\nassistant\n")
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[PAD, START, END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode_shard(job: tuple[str, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """`count` conversations as ids [N, LENGTH] and loss weights of the same shape."""
    tokenizer_json, seed, shard, count = job
    tokenizer = Tokenizer.from_str(tokenizer_json)
    rng = random.Random(f"corpus/{seed}/{shard}")
    ids, weights = np.zeros((count, LENGTH), np.int16), np.zeros((count, LENGTH), np.float16)
    n = 0
    while n < count:
        prompt, reply = (tokenizer.encode(text).ids for text in parts(converse(rng)))
        if len(prompt) + len(reply) <= LENGTH:
            ids[n, : len(prompt) + len(reply)] = prompt + reply
            weights[n, : len(prompt)] = PROMPT_WEIGHT
            weights[n, len(prompt) : len(prompt) + len(reply)] = 1
            n += 1
    return ids, weights


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor, args: argparse.Namespace) -> None:
    """AdamW, warm-up then cosine; each batch holds conversations of like length, so that little padding is computed."""
    device, generator = args.device, torch.Generator().manual_seed(args.seed)
    lengths = (weights > 0).sum(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.05)
    warmup = min(500, args.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(1.0, (s + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * min(1.0, s / args.steps)))),
    )
    batches: list[torch.Tensor] = []
    started, step = time.time(), 0
    while step < args.steps:
        if not batches:
            order = torch.randperm(len(ids), generator=generator)
            order = torch.cat([c[lengths[c].argsort()] for c in order.split(args.batch * 64)])
            batches = list(order.split(args.batch))
            batches = [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
        rows = batches.pop()
        longest = int(lengths[rows].max())
        x = ids[rows, :longest].to(device).long()
        w = weights[rows, 1:longest].to(device).float()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(input_ids=x[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten(), reduction="none")
        loss = (loss * w.flatten()).sum() / w.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        step += 1
        if step % 250 == 0 or step == 1:
            print(f"step {step:6d}  loss {loss.item():.4f}  {time.time() - started:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=7_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--conversations", type=int, default=1_600_000)
    parser.add_argument("--workers", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")

    tokenizer = train_tokenizer(args.seed, vocabulary=448)
    json = tokenizer.backend_tokenizer.to_str()
    shards = 64
    jobs = [(json, args.seed, shard, args.conversations // shards) for shard in range(shards)]
    with ProcessPoolExecutor(args.workers) as pool:
        pieces = list(pool.map(encode_shard, jobs))
    ids, weights = (torch.from_numpy(np.concatenate(column)) for column in zip(*pieces, strict=True))
    model = build_model(tokenizer).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; {int((weights > 0).sum()):,} tokens", flush=True)
    train(model, ids, weights, args)
    model.float().cpu().save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
