"""One base model with everything the team trains on it: an adapter per agent, and critics (an adapter and a value head)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from marft.models import attention
from marft.models.attention import AttentionFn, PackedAttention
from marft.models.decoder import Decoder, has_decoder
from marft.models.fused_linear import FusedLinear, adapt_layers
from marft.models.loading import Loaded, context_limit, explain_lack_of_memory
from marft.models.logprobs import head_logits
from marft.models.lora import AdapterSpec, NamedModules, Routing, TeamLora
from marft.models.quantized import Kind
from marft.terminal import complain
from marft.types import MarftError


class TeamModel(nn.Module):
    """The shared base, its adapters and value heads; called, it is the one way through the base.

    Parameters are named `base.…` (frozen; the decoder's, or the transformers model's where there is none),
    `adapters.<name>.<layer>.lora_A` and `lora_B`, and `value_heads.<critic>.…`; each is there once. The model that was
    loaded belongs to the team from then on.
    """

    masks: Tensor

    def __init__(
        self,
        loaded: Loaded,
        *,
        agents: Sequence[AdapterSpec],
        critics: Sequence[AdapterSpec],
        targets: Sequence[str] | str,
        seed: int,
    ) -> None:
        super().__init__()
        self.name, self.tokenizer, self.end_ids = loaded.name, loaded.tokenizer, loaded.end_ids
        model = loaded.model
        self.base: nn.Module = model
        self.config: Any = model.config.get_text_config()
        self.dtype = model.dtype
        self.words = int(model.get_input_embeddings().weight.shape[0])  # tokens that it knows
        self._adopt(model)
        try:
            self.lora = TeamLora(model, [*agents, *critics], targets, seed)
        except ValueError as error:
            raise MarftError(str(error)) from None
        self.register_buffer("masks", self.lora.masks(self.device), persistent=False)
        if has_decoder(model):
            self.base = self._fuse(model)
        else:
            complain(
                f"marft: model {self.name} is no Llama, Qwen2 or Qwen3 as our decoder knows them: it runs on "
                "transformers' own forward pass, which is slower"
            )
            adapt_layers(model, self.lora)
        self.products = find_products(self.base)
        self.changes = 0  # of adapters, as often as `refresh` has met some
        self.agents = [spec.name for spec in agents]
        self.adapters = self.lora.adapters  # by name, the critics' after the agents'
        self.value_heads = NamedModules(
            {spec.name: value_head(self.config.hidden_size, self.device) for spec in critics}
        )

    @property
    def head(self) -> Any:
        """The output head."""
        return self.base.head if isinstance(self.base, Decoder) else self.base.get_output_embeddings()  # type: ignore[operator]

    @property
    def decoder(self) -> Decoder | None:
        """The fused forward pass, for families that have one."""
        return self.base if isinstance(self.base, Decoder) else None

    @property
    def device(self) -> torch.device:
        """Of all parameters."""
        device: torch.device = self.head.weight.device
        return device

    @property
    def longest(self) -> int:
        """The most tokens a sequence may have."""
        return context_limit(self.config)

    def forward(self, ids: Tensor, positions: Tensor, attend: AttentionFn, routing: Routing | None) -> Tensor:
        """Last hidden states [B, T, D] of ids [B, T]."""
        self.refresh()
        states: Tensor
        if isinstance(self.base, Decoder):
            states = self.base(ids, positions, attend, routing)
            return states
        with self.lora.route(routing):
            out = self.base.base_model(input_ids=ids, position_ids=positions, attend=attend, use_cache=False)  # type: ignore[operator]
        states = out.last_hidden_state
        return states

    def reload(self, loaded: Loaded) -> None:
        """Take the base's weights from a model once more, where its layers have gone to other processes; the adapters
        stay what they are. It must be the same model, and lies where it was loaded."""
        before = self.decoder
        assert before is not None
        self.base = loaded.model
        self._adopt(loaded.model)
        self.base = decoder = self._fuse(loaded.model)
        decoder.recompute = before.recompute
        self.products = find_products(decoder)

    def quantize(self, kind: Kind, device: torch.device) -> None:
        """Bring the base to the device with its linear layers in few bits, one after the other, so that the device never holds
        all of them in full. Embedding, norms and output head stay in the base's dtype, and adapters in fp32."""
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # where kernels of ours are launched
        with explain_lack_of_memory(self.name, device):
            for product in self.products:
                product.quantize(kind, device)
            self.to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Of `to` and its like: what shares memory must do so again where it has come to lie."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for stack in self.lora.stacks.values():
            stack.restack()
        return self

    def refresh(self) -> None:
        """Let changed adapters count in the base's products; cheap where none has changed."""
        pairs = [pair for product in self.products for pair in product.refresh()]
        self.changes += bool(pairs)
        dense = [pair for pair in pairs if pair[0].is_contiguous()]  # copied in a few kernels
        with torch.no_grad():
            for some in (dense, [pair for pair in pairs if not pair[0].is_contiguous()]):
                if some:
                    torch._foreach_copy_([target for target, _ in some], [source for _, source in some])

    def routing(self, adapters: Sequence[int | None], lengths: Sequence[int]) -> Routing | None:
        """Of packed sequences; None where all are the base's alone."""
        present = frozenset(i for i in adapters if i is not None)
        if not present:
            return None
        rows = torch.tensor([len(self.lora.specs) if i is None else i for i in adapters])
        table = self.masks[rows.to(self.device)]
        return Routing(table.repeat_interleave(torch.tensor(lengths, device=self.device), 0), present)

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits, without gradient."""
        return head_logits(self, hidden)

    def values(self, critic: str, hidden: Tensor) -> Tensor:
        """The critic's value of each hidden state [..., D]: [...]."""
        values: Tensor = self.value_heads[critic](hidden.float())
        return values.squeeze(-1)

    def trainable_parameters(self, name: str) -> dict[str, nn.Parameter]:
        """What trains under `name`: an agent's adapter, or a critic's adapter and value head."""
        parameters = self.lora.adapter_parameters(name)
        if name in self.value_heads:
            parameters |= {f"value_head.{n}": p for n, p in self.value_heads[name].named_parameters()}
        return parameters

    def load_adapters(self, adapters: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy tensors into the adapters of these names, which stay trainable; tensors that are their own stay."""
        with torch.no_grad():
            for name, tensors in adapters.items():
                for key, parameter in self.trainable_parameters(name).items():
                    if tensors[key].data_ptr() != parameter.data_ptr():
                        parameter.copy_(tensors[key])

    def _adopt(self, model: PreTrainedModel) -> None:
        """Switch to our attention, after checking that it computes what the model's own does on two sequences in a row.

        A layer that does not ask it (another attention, a recurrence) would mix them, or see no earlier token when the
        engine decodes.
        """
        lengths = [5, 3]
        ids, packed = self._probe(sum(lengths)), RecordingAttention(lengths, self.device)
        with torch.no_grad():
            own = [model(input_ids=half, use_cache=False).logits for half in ids.split(lengths, dim=1)]
            expected = torch.cat(own, dim=1).float()
            if not expected.isfinite().all():
                raise MarftError(
                    f"model {self.name!r} computes numbers that are not finite: its files are damaged, or it needs another dtype "
                    "(dtype=float32)"
                )
            try:
                model.set_attn_implementation(attention.NAME)
                out = model.base_model(input_ids=ids, position_ids=packed.position_ids, attend=packed, use_cache=False)
                found = self.logits(out.last_hidden_state)
            except (KeyError, TypeError, ValueError) as error:
                raise MarftError(
                    f"model {self.name!r} cannot run on our attention ({error}); use another causal model"
                ) from None
        if len(packed.layers) < self.config.num_hidden_layers:
            raise MarftError(
                f"model {self.name!r} has layers that cannot run on our attention; use another causal model"
            )
        if not (distance := relative_distance(found, expected, lengths)) <= self.tolerance:
            raise MarftError(
                f"model {self.name!r} differs from its own forward by {distance:.2%} on our attention; use another model"
            )

    def _fuse(self, model: PreTrainedModel) -> Decoder:
        """The family's own forward pass, after checking that it computes what the model does."""
        ids, packed = self._probe(8), PackedAttention([8], self.device)
        with torch.no_grad():
            out = model.base_model(input_ids=ids, position_ids=packed.position_ids, attend=packed, use_cache=False)
            decoder = Decoder(model, self.lora.stacks, self.longest)
            found = decoder(ids, packed.position_ids, packed, None)
        distance = relative_distance(found, out.last_hidden_state, [8])
        assert distance <= self.tolerance, f"the decoder is wrong by {distance:.2%}"
        return decoder

    def _probe(self, count: int) -> Tensor:
        """Tokens [1, T] from all over the vocabulary: the first are often special and hardly trained, and half precision
        tells little of what a model makes of them."""
        words = int(self.config.vocab_size)
        return torch.arange(1, count + 1, device=self.device)[None] * max(1, words // (count + 1)) % words

    @property
    def tolerance(self) -> float:
        """Half of the precision's digits must agree."""
        return float(torch.finfo(self.dtype).eps ** 0.5)


def find_products(base: nn.Module) -> list[FusedLinear]:
    """The base's products that adapters take part in."""
    return [module for module in base.modules() if isinstance(module, FusedLinear)]


def relative_distance(found: Tensor, expected: Tensor, lengths: Sequence[int]) -> float:
    """How far two [1, T, D] lie apart, as a share of their size: the mean over the tokens of the worst sequence. Its first
    token is left out: some models have activations there so huge that half precision rounds what is left to anything."""
    found, expected = found[0].float(), expected[0].float()
    share_T = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-20)  # both may be 0
    return float(torch.stack([part[1:].mean() for part in share_T.split(list(lengths))]).max())


class RecordingAttention(PackedAttention):
    """Packed attention that remembers which layers asked it."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        super().__init__(lengths, device)
        self.layers: set[int] = set()

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self.layers.add(layer)
        return super().__call__(layer, q, k, v, scale)


def value_head(width: int, device: torch.device) -> nn.Linear:
    """Starts at zero: an untrained critic expects nothing."""
    head = nn.Linear(width, 1, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
