// Operations that treat each token alone: RMS norm, the gated activation, rotation with the cache write.
#pragma once
#include <cmath>

#include "threads.h"
#include "vector.h"

constexpr long SLICE = 32;  // Tokens that one part computes.
constexpr long WORTH_ROWS = 1 << 15;  // Elements that are worth a thread.

// Call body(token) for all tokens, in slices on several threads if there are enough elements.
template <typename Body>
void each_token(long tokens, long width, int threads, const Body& body) {
  auto part = [&](uint32_t slice) {
    long stop = (slice + 1) * SLICE < tokens ? (slice + 1) * SLICE : tokens;
    for (long token = slice * SLICE; token < stop; token++) body(token);
  };
  pool().run((tokens + SLICE - 1) / SLICE, threads, tokens * width, WORTH_ROWS, part);
}

template <typename T>
void norm_row(const T* x, T* residual, const T* weight, T* out, long width, float eps) {
  F squares = splat(0.0f);
  for (long i = 0; i < width; i += LANES) {
    F v = load(x + i);
    if (residual) {
      // The sum is rounded before the norm, as if it had been a separate operation.
      store(residual + i, v + load(residual + i));
      v = load(residual + i);
    }
    squares += v * v;
  }
  const T* source = residual ? residual : x;
  float scale = 1.0f / std::sqrt(sum(squares) / width + eps);
  for (long i = 0; i < width; i += LANES) store(out + i, load(source + i) * scale * load(weight + i));
}

// RMS norm of x [tokens, width]; with `residual`, of x + residual, which is written to `residual`.
template <typename T>
void norm(const T* x, T* residual, const T* weight, T* out, long tokens, long width, float eps, int threads) {
  each_token(tokens, width, threads, [&](long token) {
    long at = token * width;
    norm_row(x + at, residual ? residual + at : nullptr, weight, out + at, width, eps);
  });
}

// silu(gate) * up of gate_up [tokens, 2 * width].
template <typename T>
void silu_mul(const T* gate_up, T* out, long tokens, long width, int threads) {
  constexpr float LOG2E = 1.4426950408889634f;
  each_token(tokens, 2 * width, threads, [&](long token) {
    const T* gate = gate_up + token * 2 * width;
    for (long i = 0; i < width; i += LANES) {
      F g = load(gate + i);
      F power = g * -LOG2E;
      F denominator = 1.0f + exp2(power > 120.0f ? splat(120.0f) : power);
      store(out + token * width + i, g / denominator * load(gate + width + i));
    }
  });
}

// Rotate one head [dim] in halves, after its norm if it has one.
template <typename T>
void rotate(const T* x, const float* cos, const T* weight, T* to, int dim, float eps) {
  int half = dim / 2;
  const float* sin = cos + half;
  float scale = 1.0f;
  if (weight) {
    F squares = splat(0.0f);
    for (int i = 0; i < dim; i += LANES) squares += load(x + i) * load(x + i);
    scale = 1.0f / std::sqrt(sum(squares) / dim + eps);
  }
  for (int i = 0; i < half; i += LANES) {
    F a = load(x + i), b = load(x + half + i);
    if (weight) {
      a = a * scale * load(weight + i);
      b = b * scale * load(weight + half + i);
    }
    F c = load(cos + i), s = load(sin + i);
    store(to + i, a * c - b * s);
    store(to + half + i, b * c + a * s);
  }
}

template <typename T>
struct Rope {
  const T *qkv, *q_weight, *k_weight;  // The norm weights of heads, or null.
  const float* cos_sin;                // [positions, dim]
  const int64_t *positions, *slots;
  T *q, *k_cache, *v_cache;
  long tokens, heads, kv_heads, dim;
  float eps;
  int threads;
};

// Rotate q and k, write k and v to the cache, and q to a tensor of its own.
template <typename T>
void rope(const Rope<T>& r) {
  long width = (r.heads + 2 * r.kv_heads) * r.dim;
  each_token(r.tokens, width, r.threads, [&](long token) {
    const T* row = r.qkv + token * width;
    const float* cos = r.cos_sin + r.positions[token] * r.dim;
    for (long head = 0; head < r.heads; head++, row += r.dim)
      rotate(row, cos, r.q_weight, r.q + (token * r.heads + head) * r.dim, r.dim, r.eps);
    if (r.slots[token] < 0) return;  // A padding row is never written.
    long at = r.slots[token] * r.kv_heads * r.dim;
    for (long head = 0; head < r.kv_heads; head++, row += r.dim)
      rotate(row, cos, r.k_weight, r.k_cache + at + head * r.dim, r.dim, r.eps);
    std::memcpy(r.v_cache + at, row, sizeof(T) * r.kv_heads * r.dim);
  });
}
