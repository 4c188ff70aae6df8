// Runs the operations of a model's forward pass one after the other, without returning to Python between them.
//
// `program.py` builds the list of operations once and mirrors these structures. Buffers are the caller's.
#include "attention.h"
#include "linear.h"
#include "rows.h"

enum Kind : int32_t { EMBED, NORM, LINEAR, ROPE, SELECT, ATTEND, SILU_MUL };

struct Op {
  Kind kind;
  const void* in;      // [tokens, inputs]
  void* out;           // [tokens, outputs]
  const void* weight;  // NORM, LINEAR (packed), EMBED (the table), ROPE (of query heads)
  const void* more;    // LINEAR: bias; ROPE: norm weight of key heads
  void* state;         // NORM, SELECT: the residual, or null; ROPE, ATTEND: keys
  void* values;        // ROPE, ATTEND: values
  int64_t inputs, outputs;
  int64_t window;      // ATTEND: 0 for none
};

struct Model {
  int64_t heads, kv_heads, dim, block_size;
  const float* cos_sin;
  float eps, scale;
  int32_t is_bf16, threads;
};

// The sequences of an attention: int32 [sequences + 1], [sequences], [sequences, width].
struct Sequences {
  const int32_t *query_start, *seq_lens, *tables;
  int64_t count, width;
};

struct Step {
  const int64_t *token_ids, *positions, *slots;
  int64_t tokens;
  Sequences all;
  const int64_t* rows;  // Ascending: the tokens that the operations after SELECT compute.
  int64_t num_rows;     // -1: all of them
  Sequences selected;
};

namespace {

template <typename T>
void select(T* values, const int64_t* rows, long count, long width) {
  // In place: a row never moves up.
  for (long i = 0; i < count; i++) std::memmove(values + i * width, values + rows[i] * width, width * sizeof(T));
}

template <typename T>
void run(const Model& m, const Op* ops, long count, const Step& step) {
  long tokens = step.tokens;
  const Sequences* sequences = &step.all;
  for (long index = 0; index < count && tokens; index++) {
    const Op& op = ops[index];
    const T *in = (const T*)op.in, *weight = (const T*)op.weight, *more = (const T*)op.more;
    T* out = (T*)op.out;
    switch (op.kind) {
      case EMBED:
        for (long i = 0; i < tokens; i++)
          std::memcpy(out + i * op.outputs, weight + step.token_ids[i] * op.outputs, op.outputs * sizeof(T));
        break;
      case NORM:
        norm(in, (T*)op.state, weight, out, tokens, op.outputs, m.eps, m.threads);
        break;
      case LINEAR:
        linear(in, weight, more, out, tokens, op.outputs, op.inputs, m.threads);
        break;
      case ROPE:
        rope(Rope<T>{in, weight, more, m.cos_sin, step.positions, step.slots, out, (T*)op.state, (T*)op.values,
                     tokens, m.heads, m.kv_heads, m.dim, m.eps, m.threads});
        break;
      case SELECT:
        if (step.num_rows < 0) break;
        select(out, step.rows, step.num_rows, op.outputs);
        select((T*)op.state, step.rows, step.num_rows, op.inputs);
        tokens = step.num_rows;
        sequences = &step.selected;
        break;
      case ATTEND:
        attend(Attention<T>{in, (const T*)op.state, (const T*)op.values, out, sequences->query_start,
                            sequences->seq_lens, sequences->tables, sequences->count, sequences->width, m.block_size,
                            m.heads, m.kv_heads, m.dim, op.window, m.scale, m.threads});
        break;
      case SILU_MUL:
        silu_mul(in, out, tokens, op.outputs, m.threads);
        break;
    }
  }
}

}  // namespace

extern "C" {
// How many numbers of a row are one word of a packed matrix.
int32_t plumbline_per_word(int32_t is_bf16) {
  return is_bf16 ? Arithmetic<bf16>::PER_WORD : Arithmetic<float>::PER_WORD;
}

// Whether the processor computes this type with the widest vectors that the kernels are written for.
int32_t plumbline_is_wide(int32_t is_bf16) {
#if defined(__AVX512BF16__)
  return 1;
#elif defined(__AVX512F__)
  return !is_bf16;
#else
  (void)is_bf16;
  return 0;
#endif
}

// Logits: x [rows, inputs] to fp32 [rows, outputs].
void plumbline_logits(const void* x, const void* packed, const void* bias, float* out, int64_t rows, int64_t outputs,
                      int64_t inputs, int32_t is_bf16, int32_t threads) {
  if (is_bf16)
    linear((const bf16*)x, (const bf16*)packed, (const bf16*)bias, out, rows, outputs, inputs, threads);
  else
    linear((const float*)x, (const float*)packed, (const float*)bias, out, rows, outputs, inputs, threads);
}

void plumbline_run(const Model* model, const Op* ops, int64_t count, const Step* step) {
  if (model->is_bf16)
    run<bf16>(*model, ops, count, *step);
  else
    run<float>(*model, ops, count, *step);
}
}
