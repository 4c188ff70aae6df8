"""The Triton kernels that give a query the same bits in any batch, decoded or as a part of a prompt.

The keys of a row are cut at fixed positions, every TILES tiles: a segment has a softmax of its own, and segments are
joined in their order. A few decodes have many programs, which leave their segments to `join_kernel`; prompts and many
decodes have one program for all segments, which joins as it walks. Both add the same numbers in the same order. All
programs have as many rows in a warp, because a warp adds up the weights of a row.

The maximum that is subtracted from scores is rounded up to an integer. So factors between maxima are powers of two,
by which a sum is multiplied exactly: however the compiler contracts multiplications and additions, bits stay the same.
"""

from plumbline_kernels._backend import jit, tl

__all__ = ["exact_kernel", "join_kernel"]


@jit
def _walk(
    first_tile,
    end_tile,
    maximum,  # fp32 [BLOCK_M]: integers or -inf
    total,  # fp32 [BLOCK_M]
    acc,  # fp32 [BLOCK_M, HD_PAD]
    q,  # [BLOCK_M, HD_PAD]
    table,
    k_base,
    v_base,
    seq_len,
    position,  # [BLOCK_M]
    reach,  # [BLOCK_M]
    cache_block_stride,
    cache_slot_stride,
    scale_log2,
    window,
    cap,
    HD: tl.constexpr,
    HD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CAPPED: tl.constexpr,
    TILED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Take tiles of keys into the softmax of a segment; without MASKED every row sees all of them."""
    dim = tl.arange(0, HD_PAD)
    dim_mask = dim < HD
    for tile in range(first_tile, end_tile):
        key = tile * TILE + tl.arange(0, TILE)
        if BLOCK_SIZE % TILE == 0:
            page = tl.load(table + tile * TILE // BLOCK_SIZE).to(tl.int64)
            inside = tile * TILE % BLOCK_SIZE + tl.arange(0, TILE)
        else:
            page = tl.load(table + key // BLOCK_SIZE, mask=key < seq_len, other=0).to(tl.int64)
            inside = key % BLOCK_SIZE
        at = page * cache_block_stride + inside * cache_slot_stride
        k_at = k_base + at[None, :] + dim[:, None]
        v_at = v_base + at[:, None] + dim[None, :]
        if MASKED:
            # Slots beyond the sequence may hold NaN, and 0 * NaN would poison the sum: load zeros there.
            key_mask = key < seq_len
            k = tl.load(k_at, mask=key_mask[None, :] & dim_mask[:, None], other=0.0)
            v = tl.load(v_at, mask=key_mask[:, None] & dim_mask[None, :], other=0.0)
        elif HD == HD_PAD:
            k = tl.load(k_at)
            v = tl.load(v_at)
        else:
            k = tl.load(k_at, mask=dim_mask[:, None], other=0.0)
            v = tl.load(v_at, mask=dim_mask[None, :], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee")
        factor = scale_log2
        if CAPPED:
            # scale_log2 has no log2(e) here, but 2 / cap * log2(e): tanh(y) = 1 - 2 / (1 + exp(2 y)).
            scores = 1.0 - 2.0 / (1.0 + tl.exp2(scores * scale_log2))
            factor = cap
        if MASKED:
            visible = key[None, :] <= reach[:, None]
            if TILED:
                visible = visible & (key[None, :] >= (position // window * window)[:, None])
            elif window > 0:
                visible = visible & (key[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(maximum, tl.ceil(tl.max(scores, axis=1) * factor))
        # A row that has seen no key yet keeps -inf; subtracting zero instead avoids inf - inf.
        safe = tl.where(new_max == float("-inf"), 0.0, new_max)
        # Written out, because the compiler contracts tiles with and without masks differently.
        weights = tl.exp2(tl.fma(scores, factor, -safe[:, None]))
        rescale = tl.exp2(maximum - safe)
        total = total * rescale + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        maximum = new_max
    return maximum, total, acc


@jit
def _join(maximum, total, acc, new_max, new_total, new_acc):
    """Add a segment to those before it; factors are powers of two."""
    joint = tl.maximum(maximum, new_max)
    safe = tl.where(joint == float("-inf"), 0.0, joint)
    old = tl.exp2(maximum - safe)
    new = tl.exp2(new_max - safe)
    return (
        joint,
        total * old + new_total * new,
        acc * tl.expand_dims(old, -1) + new_acc * tl.expand_dims(new, -1),
    )


@jit
def _with_sink(maximum, total, sink):
    """Return the sum of weights with that of one more score, and the factor on values then."""
    sink = sink * 1.4426950408889634
    joint = tl.maximum(maximum, tl.ceil(sink))
    old = tl.exp2(maximum - joint)
    return total * old + tl.exp2(sink - joint), old


@jit
def exact_kernel(
    q_ptr,  # [T, H, HD]
    k_cache_ptr,  # [num_blocks, BLOCK_SIZE, KV, HD]
    v_cache_ptr,
    out_ptr,  # [T, H, HD], or fp32 [T, H, places, HD] if SPLIT
    max_ptr,  # fp32 [T, H, places], written if SPLIT
    sum_ptr,
    query_start_ptr,  # int32 [num_seqs + 1]
    seq_lens_ptr,  # int32 [num_seqs]
    block_tables_ptr,  # int32 [num_seqs, max_blocks]
    sinks_ptr,  # fp32 [H], read if SINKS
    reach_ptr,  # int64 [T], read if REACH: the last key of each query
    num_seqs,
    places,  # segments of the longest sequence there may be
    q_stride,
    table_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    scale_log2,  # scale * log2(e): the softmax is in base 2
    window,  # 0 for none
    cap,  # used if CAPPED
    H: tl.constexpr,
    GROUP: tl.constexpr,  # query heads per key head
    HD: tl.constexpr,
    HD_PAD: tl.constexpr,  # power of two >= HD
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows of a program: BLOCK_Q tokens times GROUP heads, rounded up
    BLOCK_Q: tl.constexpr,
    TILE: tl.constexpr,  # keys per iteration
    TILES: tl.constexpr,  # of a segment
    DECODE: tl.constexpr,  # one query per sequence, so the program id is the sequence
    SPLIT: tl.constexpr,  # programs share the segments and leave them to `join_kernel`
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    REACH: tl.constexpr,
    TILED: tl.constexpr,  # windows are side by side
):
    kv_head = tl.program_id(1)
    block = tl.program_id(0)
    if DECODE:
        seq = block
        first_query = 0
    else:
        # Sequence i owns the query blocks from start[i] // BLOCK_Q + i on; see `attend_kernel`.
        base = tl.load(query_start_ptr)
        seq = 0
        end = num_seqs
        while end - seq > 1:
            middle = (seq + end) // 2
            first = (tl.load(query_start_ptr + middle) - base) // BLOCK_Q + middle
            if first <= block:
                seq = middle
            else:
                end = middle
        first_query = (block - ((tl.load(query_start_ptr + seq) - base) // BLOCK_Q + seq)) * BLOCK_Q
    start = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - start
    seq_len = tl.load(seq_lens_ptr + seq)
    if first_query >= query_len:
        return
    context_len = seq_len - query_len

    row = tl.arange(0, BLOCK_M)
    query = first_query + row // GROUP
    head = kv_head * GROUP + row % GROUP
    row_mask = (row < BLOCK_Q * GROUP) & (query < query_len)
    token = (start + query).to(tl.int64)
    dim = tl.arange(0, HD_PAD)
    dim_mask = dim < HD
    both = row_mask[:, None] & dim_mask[None, :]
    q_at = q_ptr + token[:, None] * q_stride + head[:, None] * HD + dim[None, :]
    q = tl.load(q_at, mask=both, other=0.0)
    position = context_len + query

    # The keys that any row of this program sees; a row that sees none of a tile is not changed by it.
    last_key = context_len + tl.minimum(first_query + BLOCK_Q, query_len)
    reach = position
    if REACH:
        reach = tl.load(reach_ptr + token, mask=row_mask, other=0).to(tl.int32)
        last_key = tl.max(reach, axis=0) + 1
    first_key = 0
    if TILED:
        first_key = tl.maximum(context_len + first_query, 0) // window * window
    elif window > 0:
        first_key = tl.maximum(context_len + first_query - window + 1, 0)
    first_tile = first_key // TILE
    end_tile = tl.cdiv(last_key, TILE)
    whole_tile = first_tile
    if not (REACH or TILED or DECODE):
        # Tiles that every row sees whole come first, without masks; a decode has one other tile.
        seen = (context_len + first_query + 1) // TILE
        whole_tile = tl.where(window > 0, first_tile, tl.minimum(tl.maximum(seen, first_tile), end_tile))
    first_segment = first_tile // TILES
    end_segment = tl.cdiv(end_tile, TILES)
    if SPLIT:
        share = tl.cdiv(end_segment - first_segment, tl.num_programs(2))
        first_segment += tl.program_id(2) * share
        end_segment = tl.minimum(first_segment + share, end_segment)

    table = block_tables_ptr + seq * table_stride
    k_base = k_cache_ptr + kv_head * cache_head_stride
    v_base = v_cache_ptr + kv_head * cache_head_stride
    maximum = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HD_PAD], dtype=tl.float32)
    for segment in range(first_segment, end_segment):
        new_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        new_total = tl.zeros([BLOCK_M], dtype=tl.float32)
        new_acc = tl.zeros([BLOCK_M, HD_PAD], dtype=tl.float32)
        here = tl.maximum(first_tile, segment * TILES)
        stop = tl.minimum(end_tile, (segment + 1) * TILES)
        middle_tile = here
        if not (REACH or TILED or DECODE):
            middle_tile = tl.minimum(tl.maximum(whole_tile, here), stop)
            new_max, new_total, new_acc = _walk(
                here, middle_tile, new_max, new_total, new_acc, q, table, k_base, v_base, seq_len, position, reach,
                cache_block_stride, cache_slot_stride, scale_log2, window, cap,
                HD, HD_PAD, BLOCK_M, BLOCK_SIZE, TILE, CAPPED, TILED, False,
            )  # fmt: skip
        new_max, new_total, new_acc = _walk(
            middle_tile, stop, new_max, new_total, new_acc, q, table, k_base, v_base, seq_len, position, reach,
            cache_block_stride, cache_slot_stride, scale_log2, window, cap,
            HD, HD_PAD, BLOCK_M, BLOCK_SIZE, TILE, CAPPED, TILED, True,
        )  # fmt: skip
        if SPLIT:
            part = (token * H + head) * places + segment
            tl.store(out_ptr + part[:, None] * HD + dim[None, :], new_acc, mask=both)
            tl.store(max_ptr + part, new_max, mask=row_mask)
            tl.store(sum_ptr + part, new_total, mask=row_mask)
        else:
            maximum, total, acc = _join(maximum, total, acc, new_max, new_total, new_acc)
    if not SPLIT:
        if SINKS:
            total, old = _with_sink(maximum, total, tl.load(sinks_ptr + head, mask=row_mask, other=0.0))
            acc = acc * old[:, None]
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        out_at = out_ptr + (token[:, None] * H + head[:, None]) * HD + dim[None, :]
        tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=both)


@jit
def join_kernel(
    parts_ptr,  # fp32 [T, H, places, HD]
    max_ptr,  # fp32 [T, H, places]
    sum_ptr,
    out_ptr,  # [T, H, HD]
    seq_lens_ptr,  # int32 [T]
    sinks_ptr,  # fp32 [H], read if SINKS
    places,
    window,
    H: tl.constexpr,
    HD: tl.constexpr,
    HD_PAD: tl.constexpr,
    LENGTH: tl.constexpr,
    SINKS: tl.constexpr,
    TILED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    one = tl.zeros([1], dtype=tl.int32)
    dim = tl.arange(0, HD_PAD)[None, :]
    seq_len = tl.load(seq_lens_ptr + row // H)
    first_key = 0
    if TILED:
        first_key = tl.maximum(seq_len - 1, 0) // window * window
    elif window > 0:
        first_key = tl.maximum(seq_len - window, 0)
    maximum = tl.full([1], float("-inf"), dtype=tl.float32)
    total = tl.zeros([1], dtype=tl.float32)
    acc = tl.zeros([1, HD_PAD], dtype=tl.float32)
    end = tl.cdiv(seq_len, LENGTH)
    for first in range(first_key // LENGTH, end, 4):
        # Loads of four segments are on their way at once.
        for step in tl.static_range(4):
            segment = first + step
            part = row * places + segment + one
            known = segment + one < end
            new_max = tl.load(max_ptr + part, mask=known, other=float("-inf"))
            new_total = tl.load(sum_ptr + part, mask=known, other=0.0)
            at = parts_ptr + part[:, None] * HD + dim
            new_acc = tl.load(at, mask=known[:, None] & (dim < HD), other=0.0)
            maximum, total, acc = _join(maximum, total, acc, new_max, new_total, new_acc)
    if SINKS:
        total, old = _with_sink(maximum, total, tl.load(sinks_ptr + row % H + one))
        acc = acc * old[:, None]
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out_ptr + row * HD + dim, acc.to(out_ptr.dtype.element_ty), mask=dim < HD)
