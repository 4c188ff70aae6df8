"""The Triton kernels of `paged_attention`: one for decodes and prefill chunks, and a reduction.

A program takes a block of queries of one sequence together with all query heads that share a key head, so that its
rows fill a matrix instruction and each key is read once for all of them. It walks the sequence's keys in tiles with
an online softmax in base 2, skipping the tiles that causality or the window hide. A small batch of decodes cannot
fill a GPU that way, so its keys are cut into segments, each a program of its own, and `reduce_kernel` joins them.
"""

from plumbline_kernels._backend import jit, tl

__all__ = ["attend_kernel", "reduce_kernel"]


@jit
def _walk(
    first_tile,
    end_tile,
    q,  # [BLOCK_M, HD_PAD]
    running_max,  # fp32 [BLOCK_M]
    running_sum,  # fp32 [BLOCK_M]
    acc,  # fp32 [BLOCK_M, HD_PAD]
    table,
    k_pages,
    v_pages,
    k_base,
    v_base,
    seq_len,
    least,  # [BLOCK_M]: the first key that a row sees
    reach,  # [BLOCK_M]: the last one
    cache_block_stride,
    cache_slot_stride,
    scale_log2,
    cap,
    HD: tl.constexpr,
    HD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PAGES: tl.constexpr,
    CAPPED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Take tiles of keys into the softmax; without MASKED every row sees all of them."""
    kv_head = tl.program_id(1)
    dim = tl.arange(0, HD_PAD)
    dim_mask = dim < HD
    if PAGES:
        # Where all tiles are behind, the table may end here.
        page = tl.load(table + first_tile * TILE // BLOCK_SIZE, mask=first_tile < end_tile, other=0)
    for tile in range(first_tile, end_tile):
        key = tile * TILE + tl.arange(0, TILE)
        if PAGES:
            inside = tile * TILE % BLOCK_SIZE
            k = tl.reshape(k_pages.load([page, kv_head, inside, 0]), [TILE, HD_PAD]).T
            v = tl.reshape(v_pages.load([page, kv_head, inside, 0]), [TILE, HD_PAD])
            # Loaded for the next tile, the number of its page is there in time without a barrier.
            page = tl.load(table + tl.minimum(tile + 1, end_tile - 1) * TILE // BLOCK_SIZE)
            if MASKED:
                # Slots beyond the sequence may hold NaN, and 0 * NaN would poison the sum.
                v = tl.where((key < seq_len)[:, None], v, 0.0)
        else:
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
                # Slots beyond the sequence may hold NaN, as above: load zeros there.
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
        if CAPPED:
            # scale_log2 has no log2(e) here, but 2 / cap * log2(e): tanh(y) = 1 - 2 / (1 + exp(2 y)).
            scores = cap * (1.0 - 2.0 / (1.0 + tl.exp2(scores * scale_log2)))
        if MASKED:
            visible = (key[None, :] >= least[:, None]) & (key[None, :] <= reach[:, None])
            scores = tl.where(visible, scores, float("-inf"))
        largest = tl.max(scores, axis=1)
        new_max = tl.maximum(running_max, largest if CAPPED else largest * scale_log2)
        safe_max = new_max
        if MASKED:
            # A row that has seen no key yet keeps -inf; subtracting zero instead avoids inf - inf.
            safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2((scores if CAPPED else scores * scale_log2) - safe_max[:, None])
        rescale = tl.exp2(running_max - safe_max)
        running_sum = running_sum * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        running_max = new_max
    return running_max, running_sum, acc


@jit
def attend_kernel(
    q_ptr,  # [T, H, HD]
    k_cache_ptr,  # [num_blocks, BLOCK_SIZE, KV, HD]
    v_cache_ptr,
    k_pages,  # descriptors of the caches as [num_blocks, KV, BLOCK_SIZE, HD], read if PAGES
    v_pages,
    out_ptr,  # [T, H, HD] if SEGMENTS == 1, else fp32 [T, H, SEGMENTS, HD]
    max_ptr,  # fp32 [T, H, SEGMENTS], used if SEGMENTS > 1
    sum_ptr,
    query_start_ptr,  # int32 [num_seqs + 1]
    seq_lens_ptr,  # int32 [num_seqs]
    block_tables_ptr,  # int32 [num_seqs, max_blocks]
    sinks_ptr,  # fp32 [H], read if SINKS and SEGMENTS == 1
    reach_ptr,  # int64 [T], read if REACH: the last key of each query
    num_seqs,
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
    PAGES: tl.constexpr,  # a tile is in one page, and is loaded by its descriptor
    SEGMENTS: tl.constexpr,
    DECODE: tl.constexpr,  # one query per sequence, so the program id is the sequence
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    REACH: tl.constexpr,
    TILED: tl.constexpr,  # windows are side by side
):
    kv_head = tl.program_id(1)
    segment = tl.program_id(2)

    # The last blocks of a prompt see the most keys, so they begin first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    if DECODE:
        seq = block
        first_query = 0
    else:
        # The grid is an upper bound that needs no lengths on the host. Sequence i owns the query blocks from
        # start[i] // BLOCK_Q + i up to that of its successor; the last may be empty. Find the owner by bisection.
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
    q_at = q_ptr + token[:, None] * q_stride + head[:, None] * HD + dim[None, :]
    q = tl.load(q_at, mask=row_mask[:, None] & dim_mask[None, :], other=0.0)
    position = context_len + query

    # The keys that any row of this program sees, cut into this segment's share of whole tiles.
    last_key = context_len + tl.minimum(first_query + BLOCK_Q, query_len)
    reach = position
    if REACH:
        reach = tl.load(reach_ptr + token, mask=row_mask, other=0).to(tl.int32)
        last_key = tl.max(reach, axis=0) + 1
    if TILED:
        least = position // window * window
    else:
        least = tl.where(window > 0, position - window + 1, 0)
    first_tile = tl.maximum(tl.min(least, axis=0), 0) // TILE
    end_tile = tl.cdiv(last_key, TILE)
    if SEGMENTS > 1:
        share = tl.cdiv(end_tile - first_tile, SEGMENTS)
        first_tile += segment * share
        end_tile = tl.minimum(first_tile + share, end_tile)

    table = block_tables_ptr + seq * table_stride
    k_base = k_cache_ptr + kv_head * cache_head_stride
    v_base = v_cache_ptr + kv_head * cache_head_stride
    running_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    running_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HD_PAD], dtype=tl.float32)
    end_whole = first_tile
    if not (REACH or TILED or DECODE):
        # Tiles that every row sees whole come first, without masks; a decode has one other tile.
        seen = tl.minimum((context_len + first_query + 1) // TILE, end_tile)
        end_whole = tl.where(window > 0, first_tile, tl.maximum(seen, first_tile))
        running_max, running_sum, acc = _walk(
            first_tile, end_whole, q, running_max, running_sum, acc, table, k_pages, v_pages, k_base, v_base,
            seq_len, least, reach, cache_block_stride, cache_slot_stride, scale_log2, cap,
            HD, HD_PAD, BLOCK_SIZE, TILE, PAGES, CAPPED, False,
        )  # fmt: skip
    running_max, running_sum, acc = _walk(
        end_whole, end_tile, q, running_max, running_sum, acc, table, k_pages, v_pages, k_base, v_base,
        seq_len, least, reach, cache_block_stride, cache_slot_stride, scale_log2, cap,
        HD, HD_PAD, BLOCK_SIZE, TILE, PAGES, CAPPED, True,
    )  # fmt: skip

    out_mask = row_mask[:, None] & dim_mask[None, :]
    if SEGMENTS == 1:
        if SINKS:
            sink = tl.load(sinks_ptr + head, mask=row_mask, other=0.0) * 1.4426950408889634
            new_max = tl.maximum(running_max, sink)
            rescale = tl.exp2(running_max - new_max)
            running_sum = running_sum * rescale + tl.exp2(sink - new_max)
            acc = acc * rescale[:, None]
        acc = acc / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]
        out_at = out_ptr + (token[:, None] * H + head[:, None]) * HD + dim[None, :]
        tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=out_mask)
    else:
        part = (token * H + head) * SEGMENTS + segment
        tl.store(out_ptr + part[:, None] * HD + dim[None, :], acc, mask=out_mask)
        tl.store(max_ptr + part, running_max, mask=row_mask)
        tl.store(sum_ptr + part, running_sum, mask=row_mask)


@jit
def reduce_kernel(
    parts_ptr,  # fp32 [T, H, SEGMENTS, HD]
    max_ptr,  # fp32 [T, H, SEGMENTS]
    sum_ptr,
    out_ptr,  # [T, H, HD]
    sinks_ptr,  # fp32 [H], read if SINKS
    H: tl.constexpr,
    HD: tl.constexpr,
    HD_PAD: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SINKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    segment = tl.arange(0, SEGMENTS)
    dim = tl.arange(0, HD_PAD)
    maxima = tl.load(max_ptr + row * SEGMENTS + segment)
    total_max = tl.max(maxima, axis=0)
    if SINKS:
        sink = tl.load(sinks_ptr + row % H) * 1.4426950408889634
        total_max = tl.maximum(total_max, sink)
    # Segments without keys have a maximum of -inf and so no weight; a padding sequence has only such.
    scale = tl.exp2(maxima - tl.where(total_max == float("-inf"), 0.0, total_max))
    total = tl.sum(tl.load(sum_ptr + row * SEGMENTS + segment) * scale, axis=0)
    if SINKS:
        total += tl.exp2(sink - total_max)
    at = parts_ptr + (row * SEGMENTS + segment[:, None]) * HD + dim[None, :]
    parts = tl.load(at, mask=(dim < HD)[None, :], other=0.0)
    out = tl.sum(parts * scale[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * HD + dim, out.to(out_ptr.dtype.element_ty), mask=dim < HD)
