// Latent attention around the attention over the cache: what `plumbline_kernels.latent` computes in torch.
#pragma once
#include "experts.h"

// Multiply part of each head's numbers with its matrix: `in` has rows of heads * from numbers, of which each head's first
// ones are taken, and `out` rows of heads * to, of which each head's first ones are written.
template <typename T>
void by_head(const T* in, long from, const Matrix* matrices, T* out, long to, long tokens, long heads, int threads) {
  thread_local Scratch<T> rows, results;
  for (long head = 0; head < heads; head++) {
    const Matrix& m = matrices[head];
    rows.resize(tokens * m.inputs);
    results.resize(tokens * m.outputs);
    for (long t = 0; t < tokens; t++)
      std::memcpy(rows.data() + t * m.inputs, in + (t * heads + head) * from, m.inputs * sizeof(T));
    product(rows.data(), m, results.data(), tokens, threads);
    for (long t = 0; t < tokens; t++)
      std::memcpy(out + (t * heads + head) * to, results.data() + t * m.outputs, m.outputs * sizeof(T));
  }
}

template <typename T>
void run(const LatentWriteOp<T>& op, const Step& step, long tokens) {
  const Latent& l = op.latent;
  long width = l.rank + l.rope_dim, query = l.key_dim + l.rope_dim;
  Heads plain{};
  plain.dim = l.rope_dim;
  each_token(tokens, width + l.heads * l.rope_dim, step.threads, [&](long token) {
    const float* cos = l.cos_sin + step.positions[token] * l.rope_dim;
    for (long head = 0; head < l.heads; head++)
      rotate(op.q + (token * l.heads + head) * query + l.key_dim, cos, nullptr, 0.0f, 1.0f, plain, 1.0f,
             op.out + (token * l.heads + head) * width + l.rank);
    if (step.slots[token] < 0) return;  // A padding row is never written.
    T* row = op.cache + step.slots[token] * width;
    norm_row(op.kv + token * width, (T*)nullptr, 1.0f, 1.0f, l.norm, row, l.rank);
    rotate(op.kv + token * width + l.rank, cos, nullptr, 0.0f, 1.0f, plain, 1.0f, row + l.rank);
  });
  by_head(op.q, query, l.keys, op.out, width, tokens, l.heads, step.threads);
}

template <typename T>
void run(const LatentValuesOp<T>& op, long tokens, int threads) {
  const Latent& l = op.latent;
  by_head(op.x, l.rank + l.rope_dim, l.values, op.out, l.value_dim, tokens, l.heads, threads);
}
