// Runs the operations of a model's forward pass one after the other, without returning to Python between them.
//
// `program.py` builds the list of operations once; layout.py declares them. Buffers are the caller's.
#include "adapters.h"
#include "attention.h"
#include "blocks.h"
#include "delta.h"
#include "experts.h"
#include "fit.h"
#include "latent.h"
#include "pack.h"
#include "quantized.h"
#include "rows.h"
#include "sampling.h"

namespace {

// The tokens of a step on their way through the operations.
template <typename T>
struct Pass {
  const Step& step;
  const int threads = step.threads;
  long tokens = step.tokens;
  const Sequences* sequences = &step.all;
  const Groups* adapted = &step.adapted;

  // Rows that a model gets instead of the embedding of a token, or null.
  const T* given(long i) const {
    const int64_t token = step.token_ids[i];
    return token < 0 ? (const T*)step.given + (-1 - token) * step.given_width : nullptr;
  }

  void operator()(const EmbedOp<T>& op) {
    for (long i = 0; i < tokens; i++) {
      T* to = op.out + i * op.width;
      const int64_t token = step.token_ids[i];
      const bool is_given = token < 0 && !op.second;
      const int64_t row = std::max<int64_t>(token, 0);
      const T* from = is_given ? given(i) : op.table ? op.table + row * op.width : to;
      if (from == to) unpack_row(op.packed, row, to);
      else if (is_given || op.factor == 1.0f) std::memcpy(to, from, op.width * sizeof(T));
      for (long at = 0; !is_given && op.factor != 1.0f && at < op.width; at += LANES)
        store(to + at, load(from + at) * op.factor);
    }
  }

  void operator()(const GiveOp<T>& op) {
    for (long i = 0; step.given_width && i < tokens; i++) {
      const T* from = given(i);
      T* to = op.residual + i * op.width;
      for (long j = 0; from && j < op.width; j += LANES) store(to + j, load(to + j) + load(from + op.part * op.width + j));
    }
  }

  void operator()(const PlaceOp<T>& op) {
    for (long i = 0; i < tokens; i++) {
      const T* from = op.table + step.positions[i] * op.width;
      T* to = op.residual + i * op.width;
      for (long at = 0; at < op.width; at += LANES) store(to + at, load(to + at) + load(from + at));
    }
  }

  void operator()(const ClipOp<T>& op) {
    const F most = splat(op.size);
    for (long at = 0; at < tokens * op.width; at += LANES) {
      F x = load(op.rows + at);
      store(op.rows + at, x > most ? most : x < -most ? -most : x);
    }
  }

  void operator()(const KeepOp<T>& op) {
    if (step.num_rows < 0) return;
    // In place: a row never moves up.
    for (long i = 0; i < step.num_rows; i++)
      std::memmove(op.rows + i * op.stride, op.rows + step.rows[i] * op.stride, op.width * sizeof(T));
    if (!op.last) return;
    tokens = step.num_rows;
    sequences = &step.selected;
    adapted = &step.adapted_selected;
  }

  void operator()(const AttendOp<T>& op) {
    const Heads& h = op.heads;
    attend(Attention<T>{op.q, op.keys, op.values, op.out, sequences->query_start, sequences->seq_lens, sequences->tables,
                        h.causal ? nullptr : sequences->reach, sequences->count, sequences->width, step.block_size, h.heads,
                        h.kv_heads, h.dim, h.window, h.tiled != 0, h.scale, h.softcap, h.sinks, threads});
  }

  void operator()(const AdaptOp<T>& op) {
    thread_local Adaptation<T> adaptation;
    adaptation.run(op, *adapted, threads);
  }

  void operator()(const ExpertsOp<T>& op) {
    thread_local Mixture<T> mixture;
    mixture.mix(op, tokens, threads);
  }

  void operator()(const LinearOp<T>& op) { product(op.x, op.matrix, op.out, tokens, threads); }
  void operator()(const RopeOp<T>& op) { run(op, step, tokens); }
  void operator()(const LatentWriteOp<T>& op) { run(op, step, tokens); }
  void operator()(const DeltaOp<T>& op) { run(op, step, tokens); }
  void operator()(const ShortConvOp<T>& op) { run(op, step, tokens); }
  // Each token alone: norms, gates, activations, values of latents.
  template <typename Operation>
  void operator()(const Operation& op) {
    run(op, tokens, threads);
  }
};

template <typename T>
void run(const Op* ops, long count, const Step& step) {
  Pass<T> pass{step};
  for (const Op* op = ops; op < ops + count && pass.tokens; op++) dispatch<T>(op->kind, op->operation, pass);
}

template <typename Computation>
int32_t in_memory(const Computation& compute) {
  try {
    compute();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
// The name of the nth constant or field of layout.h, and its value or place in this library; null after the last one.
const char* plumbline_place(int64_t index, int64_t* at) {
  if (index >= (int64_t)(sizeof PLACES / sizeof *PLACES)) return nullptr;
  *at = PLACES[index].at;
  return PLACES[index].name;
}

// How many numbers of a row are one word of a packed matrix.
int32_t plumbline_per_word(int32_t is_bf16) {
  return is_bf16 ? Arithmetic<bf16>::PER_WORD : Arithmetic<float>::PER_WORD;
}

// How many columns a panel has.
int32_t plumbline_panel() { return PANEL; }

// Whether the vectors of the processor are wide enough to be faster than torch.
int32_t plumbline_is_fast() {
#if defined(__AVX__) || defined(__aarch64__)
  return 1;
#else
  return 0;
#endif
}

// The functions below return 0, or 1 if there is no memory for what they compute.

int32_t plumbline_logits(const void* x, const Matrix* matrix, float* out, int64_t rows, int32_t is_bf16, int32_t threads) {
  return in_memory([&] {
    if (is_bf16) product((const bf16*)x, *matrix, out, rows, threads);
    else product((const float*)x, *matrix, out, rows, threads);
  });
}

// Lay levels [outputs, inputs] out in so many bits, or words of 16 or 32 bits as they are.
int32_t plumbline_pack(const void* from, int64_t outputs, int64_t inputs, int32_t bits, void* to, int32_t threads) {
  return in_memory([&] {
    if (bits == 16) return pack_words((const uint16_t*)from, outputs, inputs, (uint16_t*)to, threads);
    if (bits == 32) return pack_words((const uint32_t*)from, outputs, inputs, (uint32_t*)to, threads);
    auto chosen = bits == 4 ? pack<4> : bits == 5 ? pack<5> : bits == 6 ? pack<6> : pack<8>;
    chosen((const int8_t*)from, outputs, inputs, (uint8_t*)to, threads);
  });
}

// Round rows [rows, inputs] to so many bits in groups.
int32_t plumbline_fit(const float* x, int64_t rows, int64_t inputs, int64_t group, int32_t bits, int8_t* levels,
                      float* scales, float* shifts, int32_t threads) {
  return in_memory([&] { fit(x, rows, inputs, group, bits, levels, scales, shifts, threads); });
}

// Unpack blocks of a type of GGUF files; types without shifts need no place for them.
int32_t plumbline_unpack(const uint8_t* data, int64_t count, int32_t kind, int8_t* levels, float* scales, float* shifts,
                         int32_t threads) {
  return in_memory([&] {
    switch (kind) {
      case Q4_0: return unpack_blocks<Q4_0>(data, count, levels, scales, shifts, threads);
      case Q4_1: return unpack_blocks<Q4_1>(data, count, levels, scales, shifts, threads);
      case Q5_0: return unpack_blocks<Q5_0>(data, count, levels, scales, shifts, threads);
      case Q5_1: return unpack_blocks<Q5_1>(data, count, levels, scales, shifts, threads);
      case Q8_0: return unpack_blocks<Q8_0>(data, count, levels, scales, shifts, threads);
      case Q4_K: return unpack_blocks<Q4_K>(data, count, levels, scales, shifts, threads);
      case Q5_K: return unpack_blocks<Q5_K>(data, count, levels, scales, shifts, threads);
      case Q6_K: return unpack_blocks<Q6_K>(data, count, levels, scales, shifts, threads);
    }
  });
}

int32_t plumbline_draw(const Draws* draws) {
  return in_memory([&] { draw(*draws); });
}

int32_t plumbline_run(const Op* ops, int64_t count, const Step* step) {
  return in_memory([&] { step->is_bf16 ? run<bf16>(ops, count, *step) : run<float>(ops, count, *step); });
}
}
#pragma GCC visibility pop
