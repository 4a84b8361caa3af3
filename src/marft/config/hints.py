"""What was probably meant: other frameworks' names of our keys and values, and keys of the same name elsewhere."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

from marft.config.algorithm import ALGORITHMS, CREDITS
from marft.config.schema import Config
from marft.config.schema_keys import NAME, SchemaKey, kinds_at, schema_keys
from marft.config.section import form, nearest
from marft.config.team import WORKFLOWS

# ours: what others call it; whoever misses a name adds it here
KEYS: Mapping[str, str] = {
    "optimizer.lr": "learning_rate actor_lr policy_lr lr_actor step_size",
    "critic.lr (a critic has an optimizer of its own)": "lr_critic value_lr vf_coef value_coef vf_loss_coef",
    "optimizer.warmup (iterations)": "warmup_steps warmup_ratio num_warmup_steps lr_warmup",
    "optimizer.decay": "lr_scheduler lr_scheduler_type scheduler lr_schedule",
    "optimizer.beta1": "betas adam_beta1 adam_betas momentum beta_1",
    "optimizer.grad_clip": "max_grad_norm clip_grad_norm gradient_clipping",
    "train.iterations": "steps max_steps num_steps total_steps num_iterations n_iterations num_updates total_timesteps",
    "train.iterations (how long) or train.epochs (passes over each batch)": "epochs num_epochs num_train_epochs n_epochs "
    "max_epochs ppo_epochs",
    "train.tasks × train.samples (episodes an iteration)": "batch_size train_batch_size per_device_train_batch_size "
    "rollout_batch_size global_batch_size batch",
    "train.samples": "num_generations group_size n_samples num_samples num_return_sequences rollouts n_rollouts rollout_n",
    "train.minibatches": "num_minibatches n_minibatches mini_batch_size minibatch_size ppo_mini_batch_size "
    "gradient_accumulation_steps",
    "train.tokens (most in one pass)": "micro_batch_size max_batch_tokens ppo_micro_batch_size",
    "train.recompute": "gradient_checkpointing activation_checkpointing checkpointing",
    f"team.agents.{NAME}.max_tokens": "max_new_tokens max_length max_completion_length max_response_length "
    "response_length completion_length max_gen_len max_seq_len",
    f"team.agents.{NAME}.prompt": "system_prompt system role",
    f"team.agents.{NAME}.stop": "stop_strings stop_sequences eos",
    "lora.rank": "lora_r lora_rank r lora_dim",
    "lora.alpha": "lora_alpha",
    "lora.targets": "target_modules lora_target_modules",
    "device=cuda": "gpu gpus cuda num_gpus n_gpus use_gpu use_cuda accelerator",
    "dtype": "precision torch_dtype compute_dtype",
    "dtype=bfloat16": "bf16 half mixed_precision",
    "dtype=float16": "fp16 float16",
    "quantize": "quantization quantise quantisation quantization_config quant bits",
    "quantize=int8": "load_in_8bit int8",
    "quantize=nf4": "load_in_4bit int4 nf4 qlora",
    "dtype=float32": "fp32 full_precision",
    "model": "model_name model_name_or_path model_path base_model pretrained checkpoint_path model_id llm",
    "env.data (with env=math or env=code)": "data dataset dataset_name data_path train_file data_files train_data",
    "env": "environment env_name env_id task_name",
    "env.level": "level difficulty",
    "algorithm": "algo method loss loss_type trainer",
    "algorithm.clip_low and algorithm.clip_high": "clip clip_range cliprange clip_ratio clip_eps epsilon eps_clip "
    "clip_epsilon",
    "algorithm.kl.weight": "kl kl_coef kl_coeff kl_weight kl_beta init_kl_coef kl_penalty kl_loss_coef",
    "algorithm.kl.weight (or credit.beta, with credit=step_discounted)": "beta",
    "algorithm.trust_region": "kl_budget target_kl max_kl kl_target desired_kl",
    "algorithm.entropy": "ent_coef entropy_coef entropy_coeff entropy_weight",
    "algorithm.lam": "gae_lambda lambda lmbda lambd",
    "credit.gamma (with credit=per_step or per_player)": "gamma discount discount_factor",
    "checkpoint.every": "save_steps save_every save_interval save_freq checkpoint_interval",
    "checkpoint.keep": "save_total_limit max_checkpoints",
    "eval.every": "eval_steps eval_every eval_interval eval_freq test_freq",
    "eval.tasks": "eval_size num_eval eval_samples n_eval",
    "track.wandb=PROJECT": "use_wandb wandb_project project report_to logger tracker",
    "engine=vllm": "vllm use_vllm backend",
    "seed": "random_seed random_state",
    "env.workers": "num_workers num_envs n_envs",
    "--run DIR": "run output_dir out output save_dir log_dir logdir run_name run_dir exp_name experiment",
    "--resume --run DIR": "resume resume_from resume_from_checkpoint load_checkpoint",
    "an environment's: env.reward (with env=math), or marft new env NAME makes one": "reward reward_fn reward_func reward_function reward_model",
}
OTHER_KEYS: Mapping[str, str] = {other: ours for ours, others in KEYS.items() for other in others.split()}
NAMES: Mapping[str, Mapping[str, str]] = {
    "algorithm": {
        "ppo": "our two forms of PPO are marft-token (a ratio a token) and marft-action (a ratio a turn)",
        "mappo": "marft-token with critic=shared, its default, is MAPPO token by token; marft-action turn by turn",
        "ippo": "say marft-token and critic=per_agent",
        "happo": "say marft-token or marft-action, and schedule=sequential",
        "hatrpo": "say marft-token or marft-action, and schedule=sequential",
        "trpo": "say marft-token or marft-action: each agent has its trust region",
        "a2c": "say marft-token with train.epochs=1 and train.minibatches=1: one step a batch is A2C",
        "a3c": "say marft-token with train.epochs=1 and train.minibatches=1: one step a batch is A2C",
        "reinforce": "say reinforce++ (whitened over the batch), rae (a running baseline) or rloo",
        "vpg": "say reinforce++ (whitened over the batch), rae (a running baseline) or rloo",
        "pg": "say reinforce++ (whitened over the batch), rae (a running baseline) or rloo",
        "dapo": "say grpo with algorithm.clip_high=0.28 and algorithm.aggregation=token",
        "magrpo": "say grpo: each agent has its own groups",
        "marft": "say marft-token or marft-action",
        "marft-t": "say marft-token",
        "marft-a": "say marft-action",
        "spiral": "say rae",
        "dpo": "there are no preferences here, only rewards; say grpo or marft-token",
        "sft": "there are no demonstrations here, only rewards; say grpo or marft-token",
    },
    "credit": {
        "shared": "say equal",
        "team": "say equal",
        "coma": "say difference",
        "counterfactual": "say difference",
        "shapley": "say difference or tree",
        "discounted": "say step_discounted",
        "own_return": "say per_player",
        "self_play": "say per_player",
    },
    "schedule.mode": {"happo": "say sequential", "mappo": "say joint", "simultaneous": "say joint"},
    "dtype": {
        "bf16": "say bfloat16",
        "fp32": "say float32",
        "fp16": "say float16",
        "half": "say bfloat16, or float16 where the device has none",
        "int8": "say quantize=int8",
        "nf4": "say quantize=nf4",
        "int4": "say quantize=nf4",
    },
    "quantize": {"int4": "say nf4", "4bit": "say nf4", "fp4": "say nf4", "8bit": "say int8", "none": "say null"},
    "optimizer.decay": {"cosine": "say linear", "none": "say constant"},
    "critic.mode": {"centralized": "say shared", "central": "say shared", "independent": "say per_agent"},
}
SURE, CLEARLY = 0.75, 0.2  # how alike a key elsewhere must be, and how much more so than one of the same section
PLAIN = re.compile(r"[\w.]+")


def hint_for_key(path: Sequence[str], siblings: Sequence[str], agents: Collection[str] = ()) -> str:
    """What was meant by an unknown key; `siblings` are the keys that its section has, `agents` the team's names."""
    found = hint_from_other_keys(path, siblings, agents)
    match path:
        case ["team", "agents", agent, _, *_]:
            return found.replace(f".{NAME}.", f".{agent}.")
    return found


def hint_from_other_keys(path: Sequence[str], siblings: Sequence[str], agents: Collection[str]) -> str:
    """A hint for an unknown key: a near sibling, another framework's word for ours, or the same key elsewhere."""
    word = path[-1]
    same = [key for key in all_keys() if form(key.path[-1]) == form(word)]
    of_others = [key.of for key in same if key.of and key.path == tuple(path)]
    if of_others:
        return f"; it is for {' and '.join(dict.fromkeys(of_others))}"
    if best_similarity(word, siblings) == 1 or form(word).removesuffix("s") in map(form, siblings):
        return nearest(word, siblings, prefix=path[:-1])
    if ours := OTHER_KEYS.get(form(word)):
        return did_you_mean([ours])
    if word in agents:
        return did_you_mean([f"team.agents.{word}"])
    if same:
        return did_you_mean(key_paths(same))
    known = {**{form(key.path[-1]): "" for key in all_keys()}, **OTHER_KEYS}
    if best_similarity(word, known) >= max(SURE, best_similarity(word, siblings) + CLEARLY):
        [found] = difflib.get_close_matches(form(word), known, n=1, cutoff=SURE)
        return did_you_mean([known[found]] if known[found] else key_paths(p for p in all_keys() if p.path[-1] == found))
    return nearest(word, siblings, prefix=path[:-1])


def hint_for_name(where: str, word: str, known: Collection[str]) -> str:
    """What was meant by a name that nobody has, of an algorithm, a credit or any other choice."""
    if meant := NAMES.get(where, {}).get(word.casefold().replace("_", "-")):
        return f"; {meant}"
    return nearest(word, list(known))


def hint_for_recipe(word: str, recipes: Collection[str]) -> str:
    """What was meant by a word that is no recipe."""
    for key, names in (("algorithm", ALGORITHMS), ("credit", CREDITS), ("team.workflow", WORKFLOWS)):
        if found := [name for name in names if form(name) == form(word)]:
            return f"; did you mean '{key}={found[0]}'?"
    if kinds_at(word.split(".")):
        return "; a setting is written key=value"
    begun = [name for name in recipes if form(name).startswith(form(word))]
    if begun and not any(form(name) == form(word) for name in begun):
        return f"; did you mean {join_words(begun)}?"
    return nearest(word, list(recipes))


def hint_for_option(word: str) -> str:
    """`--lr 1e-3` is how other programs take their settings; ours are written key=value."""
    name, _, value = word.lstrip("-").partition("=")
    if "." in name and kinds_at(name.split(".")):
        return f"; settings are written key=value: {name}={value or 'VALUE'}"
    hint = hint_for_key([name], list(Config.model_fields)) if name else ""
    return f"; settings are written key=value{hint}" if hint else ""


@cache
def all_keys() -> list[SchemaKey]:
    """All keys of the schema, computed once."""
    return list(schema_keys())


def key_paths(found: Iterable[SchemaKey]) -> list[str]:
    """Their paths: those that have a value of their own first, and those of single agents after the team's."""
    ordered = sorted(found, key=lambda key: (not key.valued, NAME in key.path))
    return list(dict.fromkeys(str(key) for key in ordered))


def did_you_mean(ours: Sequence[str]) -> str:
    """The hint's text: a question for plain keys, a statement where ours comes with an explanation."""
    return f"; did you mean {join_words(ours)}?" if all(map(PLAIN.fullmatch, ours)) else f"; here it is {ours[0]}"


def join_words(words: Sequence[str]) -> str:
    """`'a', 'b' or 'c'`: three words at most."""
    quoted = [repr(word) for word in words[:3]]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def best_similarity(word: str, known: Collection[str]) -> float:
    """How alike the most similar one is, from 0 to 1."""
    return max((difflib.SequenceMatcher(None, form(word), form(each)).ratio() for each in known), default=0.0)
