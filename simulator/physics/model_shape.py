"""The shape of a model and what follows from it: bytes of state a user leaves behind, operations a token costs.

Three kinds of attention: HSTU (pointwise, a gate beside query, key and value, no feed-forward), softmax decoders with grouped
key-value heads and a feed-forward, and linear attention, whose state has one size whatever the history.
"""

from dataclasses import dataclass
from enum import StrEnum


class Attention(StrEnum):
    """How tokens see one another."""

    HSTU = "hstu"
    SOFTMAX = "softmax"
    LINEAR = "linear"


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of one model.

    Parameters
    ----------
    attention : Attention
    layers, width, heads, head_dim : int
    kv_heads : int, optional
        Heads of keys and values; as many as `heads` when absent.
    ffn_width : int
        Inner width of a gated feed-forward (three matrices); 0 for none.
    vocabulary : int
        Output tokens of a decoder; 0 for none.
    element_bytes : int
        Size of a cached key or value element (2: bf16).
    state_element_bytes : int
        Size of an element of linear attention's state (4: fp32).

    Raises
    ------
    ValueError
        For sizes no model can have.
    """

    attention: Attention
    layers: int
    width: int
    heads: int
    head_dim: int
    kv_heads: int | None = None
    ffn_width: int = 0
    vocabulary: int = 0
    element_bytes: int = 2
    state_element_bytes: int = 4

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "head_dim", "element_bytes", "state_element_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        for name in ("ffn_width", "vocabulary"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} must not be negative")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ValueError(f"kv_heads: {self.kv_heads} must divide heads, {self.heads}")

    @property
    def attention_width(self) -> int:
        """Heads times head size."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Key-value heads times head size."""
        return (self.kv_heads or self.heads) * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers: 2 * L * kv_heads * head_dim * element bytes; 0 for linear attention."""
        return 0 if self.attention is Attention.LINEAR else 2 * self.layers * self.kv_width * self.element_bytes

    @property
    def state_bytes_per_user(self) -> int:
        """State of one user that does not grow with the history: L * heads * head_dim^2 elements for linear attention, else 0."""
        if self.attention is not Attention.LINEAR:
            return 0
        return self.layers * self.heads * self.head_dim**2 * self.state_element_bytes

    def user_bytes(self, history_tokens: int) -> int:
        """Bytes that the cache holds for a user with that history; nothing for an empty one."""
        return self.kv_bytes_per_token * history_tokens + (self.state_bytes_per_user if history_tokens else 0)

    @property
    def layer_flops_per_token(self) -> int:
        """Operations of one layer on one token apart from attention to other tokens.

        HSTU: 8 d^2 for U, V, Q, K and 2 d^2 for the output when heads times head size is d. Softmax: query and output, keys and
        values, three matrices of the feed-forward. Linear: four projections and output besides updating, decaying and reading a
        state of head_dim^2 a head (7 operations an element), which replaces attention to other tokens.
        """
        d, a = self.width, self.attention_width
        feed_forward = 6 * d * self.ffn_width
        if self.attention is Attention.HSTU:
            return 10 * d * a + feed_forward
        if self.attention is Attention.SOFTMAX:
            return 4 * d * a + 4 * d * self.kv_width + feed_forward
        return 10 * d * a + 7 * self.heads * self.head_dim**2 + feed_forward

    @property
    def layer_flops_per_pair(self) -> int:
        """Operations of one layer per (query, key) pair: 4 * heads * head_dim; 0 for linear attention."""
        return 0 if self.attention is Attention.LINEAR else 4 * self.attention_width

    @property
    def output_flops(self) -> int:
        """Operations of the output layer for one token."""
        return 2 * self.width * self.vocabulary

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one batch reads, output layer included, embeddings not."""
        d, a = self.width, self.attention_width
        per_layer = 3 * d * self.ffn_width
        per_layer += 2 * d * a + 2 * d * self.kv_width if self.attention is Attention.SOFTMAX else 5 * d * a
        return (self.layers * per_layer + d * self.vocabulary) * self.element_bytes


#: HSTU of NVIDIA's published L20 bars: 32 KiB of KV a token.
HSTU_PUBLISHED = ModelShape(attention=Attention.HSTU, layers=8, width=1024, heads=4, head_dim=256)

#: The same block as published for B200, whose kernel has heads of 128.
HSTU_PUBLISHED_B200 = ModelShape(attention=Attention.HSTU, layers=8, width=1024, heads=8, head_dim=128)

#: HSTU of the KV manager in the MTServe code (hidden 1024, 4 heads of 128): 16 KiB a token.
HSTU_MTSERVE = ModelShape(attention=Attention.HSTU, layers=8, width=1024, heads=4, head_dim=128)

#: Qwen3-1.7B, the backbone of NVIDIA's published generative retrieval figures: 112 KiB a token.
QWEN3_1_7B = ModelShape(
    attention=Attention.SOFTMAX, layers=28, width=2048, heads=16, head_dim=128, kv_heads=8, ffn_width=6144, vocabulary=151_936
)

#: A Gated DeltaNet of the size OneLA was shown on; 18 layers and 16 heads of 128 are assumed: 18 MiB a user.
GATED_DELTANET = ModelShape(attention=Attention.LINEAR, layers=18, width=1024, heads=16, head_dim=128, ffn_width=3584)
