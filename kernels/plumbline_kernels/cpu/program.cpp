// Runs the operations of a model's forward pass one after the other, without returning to Python between them.
//
// `program.py` builds the list of operations once and mirrors these structures. Buffers are the caller's.
#include "adapters.h"
#include "attention.h"
#include "delta.h"
#include "experts.h"
#include "latent.h"
#include "quantized.h"
#include "rows.h"
#include "sampling.h"

enum Kind : int32_t { EMBED, NORM, LINEAR, ROPE, SELECT, ATTEND, GATE, EXPERTS, LATENT_WRITE, LATENT_VALUES, ADAPT, DELTA, OPEN,
                      KEEP, TOKENS, GIVE };

struct Op {
  Kind kind;
  int32_t bits;        // LINEAR: of the weight; 0 for the model's type
  const void* in;      // [tokens, inputs]
  void* out;           // [tokens, outputs]
  const void* weight;  // NORM (fp32, or null for a sum alone), LINEAR (packed), EMBED (the table)
  const void* more;    // NORM (fp32), LINEAR: bias, or null; LATENT_WRITE: latents and keys;
                       // OPEN: gates; TOKENS: second embeddings; EXPERTS: what the router reads, or null
  void* state;         // NORM: the residual, or null; ROPE, ATTEND, LATENT_WRITE: keys; LINEAR: scales, or null;
                       // EXPERTS: the results of shared experts, or null; DELTA: inputs
  void* values;        // ROPE, ATTEND: values; LINEAR: shifts, or null; DELTA: matrices, fp32
  int64_t inputs, outputs;
  int64_t group;       // LINEAR: inputs that share a scale; OPEN, KEEP: from a row (of gates) to the next one
  const void* part;    // ROPE, ATTEND: Heads; EXPERTS: Experts; LATENT_*: Latent; ADAPT: Adapters; DELTA: Delta
  float eps;           // NORM
  float factor;        // NORM: on what is added to the residual; EMBED: on the result; TOKENS: on what is normalised
  float scale;         // NORM: on the sum; TOKENS: on the result
  int32_t mode;        // NORM: whether it is centred; GATE: the activation; OPEN: a `Gating`; EMBED: whether tokens of
                       // given rows are taken for the first token; GIVE: the part of a given row
};

struct Model {
  int64_t block_size;
  int32_t is_bf16, threads;
};

// The sequences of an attention: int32 [sequences + 1], [sequences], [sequences, width]; int64 [tokens] or null.
struct Sequences {
  const int32_t *query_start, *seq_lens, *tables;
  const int64_t* reach;
  int64_t count, width;
};

struct Step {
  const int64_t *token_ids, *positions, *slots;
  const int64_t* state_rows;  // [sequences], or null if no layer has states
  const void* given;    // [given rows, given_width]: token -1 - i is the first part of row i, and not a row of the table
  int64_t given_width;  // Several times the width of the residual if later layers add further parts; 0 if none is given.
  int64_t tokens;
  Sequences all;
  const int64_t* rows;  // Ascending: the tokens that the operations after SELECT compute.
  int64_t num_rows;     // -1: all of them
  Sequences selected;
  Groups adapted, adapted_selected;  // The rows with an adapter, before and after SELECT.
};

namespace {

template <typename T>
void keep(T* values, const int64_t* rows, long count, long width, long stride) {
  // In place: a row never moves up.
  for (long i = 0; i < count; i++) std::memmove(values + i * stride, values + rows[i] * stride, width * sizeof(T));
}

template <typename T>
void embed(const Step& step, const Op& op, const T* table, T* out, long tokens) {
  long width = op.outputs;
  float factor = op.factor;
  for (long i = 0; i < tokens; i++, out += width) {
    const int64_t token = op.mode && step.token_ids[i] < 0 ? 0 : step.token_ids[i];
    const T* from = token < 0 ? (const T*)step.given + (-1 - token) * step.given_width : table + token * width;
    if (token < 0 || factor == 1.0f) std::memcpy(out, from, width * sizeof(T));
    else
      for (long at = 0; at < width; at += LANES) store(out + at, load(from + at) * factor);
  }
}

// Adds a part of each given row to the residual of its token.
template <typename T>
void give(const Step& step, T* residual, long tokens, long width, long part) {
  if (!step.given_width) return;
  for (long i = 0; i < tokens; i++) {
    if (step.token_ids[i] >= 0) continue;
    const T* from = (const T*)step.given + (-1 - step.token_ids[i]) * step.given_width + part * width;
    T* to = residual + i * width;
    for (long j = 0; j < width; j += LANES) store(to + j, load(to + j) + load(from + j));
  }
}

template <typename T, typename Out>
void multiply(const Op& op, const T* bias, Out* out, long rows, int threads) {
  Matrix matrix{op.weight, bias, op.state, op.values, op.outputs, op.inputs, op.group, op.bits};
  product((const T*)op.in, matrix, out, rows, threads);
}

// Compute an operation of a layer's mixer.
template <typename T>
void mix(const Model& m, const Op& op, const Step& step, const Sequences& sequences, long tokens) {
  const T *in = (const T*)op.in, *more = (const T*)op.more;
  T* out = (T*)op.out;
  switch (op.kind) {
    case ROPE:
      rope(Rope<T>{*(const Heads*)op.part, in, op.inputs, step.positions, step.slots, out, (T*)op.state, (T*)op.values, tokens,
                   m.threads});
      break;
    case ATTEND: {
      const Heads& heads = *(const Heads*)op.part;
      attend(Attention<T>{in, (const T*)op.state, (const T*)op.values, out, sequences.query_start, sequences.seq_lens,
                          sequences.tables, heads.causal ? nullptr : sequences.reach, sequences.count, sequences.width,
                          m.block_size, heads.heads, heads.kv_heads, heads.dim, heads.window, heads.tiled != 0, heads.scale,
                          heads.softcap, heads.sinks, m.threads});
      break;
    }
    case LATENT_WRITE:
      latent_write(*(const Latent*)op.part, in, more, (T*)op.state, out, step.positions, step.slots, tokens, m.threads);
      break;
    case LATENT_VALUES: {
      const Latent& latent = *(const Latent*)op.part;
      by_head(in, latent.rank + latent.rope_dim, latent.values, out, latent.value_dim, tokens, latent.heads, m.threads);
      break;
    }
    case DELTA:
      delta::run(*(const Delta*)op.part,
                 States{step.all.query_start, step.all.seq_lens, step.state_rows, step.all.count, tokens}, in, op.inputs,
                 (T*)op.state, (float*)op.values, out, m.threads);
      break;
    default:
      break;
  }
}

template <typename T>
void run(const Model& m, const Op* ops, long count, const Step& step) {
  long tokens = step.tokens;
  const Sequences* sequences = &step.all;
  const Groups* adapted = &step.adapted;
  for (long index = 0; index < count && tokens; index++) {
    const Op& op = ops[index];
    const T *in = (const T*)op.in, *weight = (const T*)op.weight, *more = (const T*)op.more;
    T* out = (T*)op.out;
    switch (op.kind) {
      case EMBED:
        embed(step, op, weight, out, tokens);
        break;
      case NORM:
        norm(in, (T*)op.state, op.factor, op.scale, Norm{(const float*)op.weight, (const float*)op.more, op.eps, op.mode != 0},
             out, tokens, op.outputs, m.threads);
        break;
      case LINEAR:
        multiply(op, more, out, tokens, m.threads);
        break;
      case KEEP:
        if (step.num_rows >= 0) keep(out, step.rows, step.num_rows, op.outputs, op.group);
        break;
      case SELECT:
        if (step.num_rows < 0) break;
        tokens = step.num_rows;
        sequences = &step.selected;
        adapted = &step.adapted_selected;
        break;
      case GATE:
        gate(in, out, tokens, op.outputs, (Activation)op.mode, op.inputs != op.outputs, m.threads);
        break;
      case OPEN:
        open(in, more, op.group, out, tokens, op.outputs, (Gating)op.mode, m.threads);
        break;
      case TOKENS:
        token_inputs(in, more, Norm{(const float*)op.weight, nullptr, op.eps, false}, op.factor, op.scale, out,
                     tokens * op.outputs / op.inputs, op.inputs, m.threads);
        break;
      case ADAPT: {
        if (!adapted->count) break;
        thread_local Adaptation<T> adaptation;
        adaptation.run(*(const Adapters*)op.part, *adapted, in, op.inputs, out, op.outputs, m.threads);
        break;
      }
      case GIVE:
        give(step, out, tokens, op.outputs, op.mode);
        break;
      case EXPERTS: {
        thread_local Mixture<T> mixture;
        mixture.run(*(const Experts*)op.part, in, more ? more : in, (const T*)op.state, out, tokens, op.outputs, m.threads);
        break;
      }
      default:
        mix<T>(m, op, step, *sequences, tokens);
    }
  }
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

// Logits: one LINEAR whose outputs are fp32.
int32_t plumbline_logits(const Op* op, int64_t rows, int32_t is_bf16, int32_t threads) {
  return in_memory([&] {
    if (is_bf16)
      multiply(*op, (const bf16*)op->more, (float*)op->out, rows, threads);
    else
      multiply(*op, (const float*)op->more, (float*)op->out, rows, threads);
  });
}

int32_t plumbline_draw(const Draws* draws) {
  return in_memory([&] { draw(*draws); });
}

int32_t plumbline_run(const Model* model, const Op* ops, int64_t count, const Step* step) {
  return in_memory([&] {
    if (model->is_bf16)
      run<bf16>(*model, ops, count, *step);
    else
      run<float>(*model, ops, count, *step);
  });
}
}
#pragma GCC visibility pop
