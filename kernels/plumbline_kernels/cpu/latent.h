// Latent attention around the attention over the cache: what `latent.py` computes in torch.
#pragma once
#include <vector>

#include "experts.h"

// `Latent` in parts.py.
struct Latent {
  const float *cos_sin, *norm;    // [positions, rope], [rank]
  const Matrix *keys, *values;    // By head: key_dim to rank, rank to value_dim.
  int64_t heads, rank, key_dim, rope_dim, value_dim;
  float eps;
};

// Multiply part of each head's numbers with its matrix: `in` has rows of heads * from numbers, of which each head's first
// ones are taken, and `out` rows of heads * to, of which each head's first ones are written.
template <typename T>
void by_head(const T* in, long from, const Matrix* matrices, T* out, long to, long tokens, long heads, int threads) {
  thread_local std::vector<T> rows, results;
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

// Write latents and rotated keys of kv [tokens, rank + rope] to the cache, and queries over it from q to `out`.
template <typename T>
void latent_write(const Latent& l, const T* q, const T* kv, T* cache, T* out, const int64_t* positions,
                  const int64_t* slots, long tokens, int threads) {
  long width = l.rank + l.rope_dim, query = l.key_dim + l.rope_dim;
  Heads plain{};
  plain.dim = l.rope_dim;
  Norm norm{l.norm, nullptr, l.eps, false};
  each_token(tokens, width + l.heads * l.rope_dim, threads, [&](long token) {
    const float* cos = l.cos_sin + positions[token] * l.rope_dim;
    for (long head = 0; head < l.heads; head++)
      rotate(q + (token * l.heads + head) * query + l.key_dim, cos, nullptr, 0.0f, 1.0f, plain, 1.0f,
             out + (token * l.heads + head) * width + l.rank);
    if (slots[token] < 0) return;  // A padding row is never written.
    T* row = cache + slots[token] * width;
    norm_row(kv + token * width, (T*)nullptr, 1.0f, 1.0f, norm, row, l.rank);
    rotate(kv + token * width + l.rank, cos, nullptr, 0.0f, 1.0f, plain, 1.0f, row + l.rank);
  });
  by_head(q, query, l.keys, out, width, tokens, l.heads, threads);
}
