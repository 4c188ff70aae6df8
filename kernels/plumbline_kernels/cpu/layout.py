"""The structures that Python and the C++ kernels share, and the operations of a program, each declared once.

`build` compiles the kernels with the header that this table writes. It imports nothing but the standard library.
"""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from plumbline_kernels.cpu import states, structs
from plumbline_kernels.cpu.addresses import Anything, Floats, Ints, Out, Rows, Shorts
from plumbline_kernels.cpu.structs import KernelOperation, Struct, declare

if TYPE_CHECKING:
    from torch import Tensor

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "swiglu_oss": 2, "relu2": 3, "gelu": 4, "relu": 5, "xielu": 6}
CONSTANTS = {
    **{name.upper(): number for name, number in ACTIVATIONS.items()},
    "WIDE_DIM": 640,  # The widest head.
    "FEW_ROWS": 64,  # The most query heads of a key head.
    "WORD": 4,  # Bytes of a rounded weight that are multiplied at once.
}


@declare
class MatrixStruct(Struct):
    """A packed weight with its bias; see product.h and quantized.h."""

    weight: Anything = None
    bias: Anything = None
    scales: Anything = None
    shifts: Anything = None
    outputs: int = 0
    inputs: int = 0
    group: int = 0  # inputs that share a scale
    bits: int = 0  # 8, 6, 5 or 4; 0 for the type of the inputs


Matrices = Annotated[Sequence[MatrixStruct], "const Matrix*"]


@declare
class NormStruct(Struct):
    """x / sqrt(mean(x²) + eps) * weight, of x - mean(x) if it is centred, plus a bias if there is one."""

    weight: Floats  # None for a sum alone
    bias: Floats = None
    eps: float = 0.0
    centred: bool = False


@declare
class HeadsStruct(Struct):
    """What the operations of an attention have in common; see `rope_kv_write` and `paged_attention`."""

    heads: int
    kv_heads: int
    dim: int
    cos_sin: Floats = None  # [positions, dim]; None for no rotation
    temperature: Floats = None  # [positions], factors on queries
    sinks: Floats = None  # [heads]
    scale: float
    softcap: Annotated[float | None, "float"] = None
    window: Annotated[int | None, "int64_t"] = None
    tiled: bool = False  # chunked attention: windows are side by side
    causal: bool = False  # always, even inside an image (`AttentionBatch.reach`)
    weights: Floats = None  # [heads + kv_heads, dim]; this and the next fields are those of `HeadNorms`
    eps: float = 0.0
    centred: bool = False
    whole: bool = False
    after: bool = False
    values: bool = False


@declare
class ExpertsStruct(Struct):
    """A block of experts; the fields after `number` are those of `Routing`."""

    router: MatrixStruct  # fp32 [E, D]
    correction: Floats = None  # [E], e_score_correction_bias; see `route`
    shared_gate: Floats = None  # [D]; its product with a token is the gate before the sigmoid
    factors: Floats = None  # [E], on weights
    shared_scale: float = 1.0  # on the result of shared experts
    gate_up: Matrices  # by expert [2 * I, D], or without a gate [I, D]
    down: Matrices  # by expert [D, I]
    activation: int
    number: int
    top_k: int
    groups: int
    chosen_groups: int
    sigmoid: bool
    late_softmax: bool
    best_two: bool
    normalised: bool
    mixer: bool
    jitter: float
    of_inputs: bool
    floor: float
    scale: float


@declare
class LatentStruct(Struct):
    """A latent attention."""

    cos_sin: Floats  # [positions, rope_dim]
    norm: NormStruct  # of latents, [rank]
    keys: Matrices  # by head [rank, key_dim]
    values: Matrices  # by head [value_dim, rank]
    heads: int
    rank: int
    key_dim: int
    rope_dim: int
    value_dim: int


@declare
class PairStruct(Struct):
    """The two projections of an adapter at a linear layer, [rank, in] and [out, rank]; zeros without an adapter."""

    down: MatrixStruct
    up: MatrixStruct


@declare
class SequencesStruct(Struct):
    """The sequences of an attention; see `AttentionBatch`."""

    query_start: Shorts = None  # [count + 1]
    seq_lens: Shorts = None  # [count]
    tables: Shorts = None  # [count, width]
    reach: Ints = None  # [tokens]
    count: int = 0
    width: int = 0


@declare
class GroupsStruct(Struct):
    """The rows with an adapter; see `AdapterRows`."""

    rows: Ints = None
    slots: Ints = None
    starts: Ints = None
    count: int = 0


@declare
class StepStruct(Struct):
    """The tokens of a step, and how it runs."""

    token_ids: Ints = None
    positions: Ints = None
    slots: Ints = None
    state_rows: Ints = None  # [sequences], if a layer has states
    given: Anything = None  # [G, given_width]: the first part of row i is the embedding of token -1 - i
    given_width: int = 0  # a multiple of the residual's width if later layers add parts; 0 for none
    tokens: int = 0
    all: SequencesStruct = SequencesStruct()
    rows: Ints = None  # ascending: the tokens that are computed after the selection
    num_rows: int = -1  # -1 for all
    selected: SequencesStruct = SequencesStruct()
    adapted: GroupsStruct = GroupsStruct()
    adapted_selected: GroupsStruct = GroupsStruct()  # after the selection
    block_size: int
    is_bf16: bool
    threads: int = 1


@declare
class DrawsStruct(Struct):
    """See `plumbline_kernels.sampling.sample`."""

    logits: Floats  # [rows, vocab]
    rows: int
    vocab: int
    temperature: Floats
    top_k: Shorts
    top_p: Floats
    min_p: Floats
    seeds: Ints
    positions: Ints
    out: Annotated["Tensor", "int64_t*"]
    threads: int


@declare
class EmbedOp(KernelOperation):
    """Look up the step's tokens in a table [V, width], which may be packed instead, times a factor."""

    buffers = 2  # Second embeddings may be as wide as the first ones, which are the residual stream.
    table: Rows = None
    packed: MatrixStruct = MatrixStruct()
    out: Out = None
    width: int
    factor: float = 1.0
    second: bool = False  # tokens of given rows are taken for the first token


@declare
class GiveOp(KernelOperation):
    """Add a part of the given rows, as wide as the residual [T, width], to the residual of their tokens (DeepStack)."""

    residual: Out
    width: int
    part: int


@declare
class PlaceOp(KernelOperation):
    """Add the rows of a table [positions, width] for the tokens' positions to the residual [T, width]."""

    residual: Out
    table: Rows
    width: int


@declare
class ClipOp(KernelOperation):
    """Limit the size of the numbers of rows [T, width]."""

    rows: Out
    width: int
    size: float


@declare
class AddNormOp(KernelOperation):
    """Norm x [T, width], or the sum scale * (residual + factor * x), which is written to the residual."""

    buffers = 2  # A result may be used until the second next norm.
    x: Rows
    residual: Out = None
    norm: NormStruct
    out: Out = None
    width: int
    factor: float = 1.0
    scale: float = 1.0


@declare
class LinearOp(KernelOperation):
    """Map x [T, in] to x @ weight.T + bias, [T, out]."""

    x: Rows
    matrix: MatrixStruct
    out: Out = None


@declare
class AdaptOp(KernelOperation):
    """Add the products of the rows' adapters to the result [T, outputs] of a linear layer of x [T, inputs]."""

    pairs: Annotated[ctypes.Array[PairStruct], "const Pair*"]  # by slot
    x: Rows
    out: Out
    inputs: int
    outputs: int


@declare
class RopeOp(KernelOperation):
    """Rotate q and k of qkv, write k and v to the cache, and q to `out`; heads without keys have no cache."""

    heads: HeadsStruct
    qkv: Rows
    stride: int  # from a row to the next one, which gates may follow
    keys: Out = None
    values: Out = None
    out: Out = None


@declare
class KeepOp(KernelOperation):
    """Move the rows of the step's `Selection` up to the front of a buffer."""

    rows: Out
    width: int
    stride: int
    last: bool  # the operations after this one compute no other rows


@declare
class AttendOp(KernelOperation):
    """Compute the attention of q over the cache, [T, H * dim]."""

    heads: HeadsStruct
    q: Rows
    keys: Rows
    values: Rows
    out: Out = None


@declare
class ActivateOp(KernelOperation):
    """Compute activation(gate) * up of x [T, 2 * width], or activation(x) of [T, width]."""

    x: Rows
    out: Out = None
    width: int
    activation: int
    gated: bool
    curve: Floats = None  # [4], of a xielu


@declare
class GateOp(KernelOperation):
    """Compute x * sigmoid(gates), or gelu(x) * gates, both [T, width]."""

    x: Rows
    gates: Rows
    stride: int  # from a row of gates to the next one
    out: Out = None
    width: int
    by_gelu: bool


@declare
class TokenInputsOp(KernelOperation):
    """Compute (norm(factor * x) + second) * scale of rows [T, layers, width]: the inputs of all layers."""

    x: Rows
    second: Rows
    norm: NormStruct
    out: Out = None
    layers: int
    width: int
    factor: float
    scale: float


@declare
class ExpertsOp(KernelOperation):
    """Add up the results of experts for x [T, width] and `shared` times its gate; the router reads `asked`."""

    experts: ExpertsStruct
    x: Rows
    asked: Rows
    shared: Rows
    out: Out = None
    width: int


@declare
class LatentWriteOp(KernelOperation):
    """Write latents and keys of kv to the cache; compute queries over it, [T, H * (rank + rope)]."""

    latent: LatentStruct
    q: Rows
    kv: Rows
    cache: Out
    out: Out = None


@declare
class LatentValuesOp(KernelOperation):
    """Map sums of what the cache has to the values of heads, [T, H * value_dim]."""

    latent: LatentStruct
    x: Rows
    out: Out = None


@declare
class Op(Struct):
    """One operation of a program."""

    kind: int
    operation: Annotated[int, "const void*"]


DECLARED = (states.DeltaOp, states.ShortConvOp)
"""Operations of other modules, which are in the header and have kinds, too."""
HEADER = structs.header(CONSTANTS)
PLACES = structs.places(CONSTANTS)
KINDS = {operation: kind for kind, operation in enumerate(structs.operations())}
