// Operations that treat each token alone: norms, gated activations, rotation with the cache write.
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

// A norm of rows: x / sqrt(mean(x²) + eps) * weight, of x - mean(x) if it is centred, plus a bias if there is one.
struct Norm {
  const float *weight, *bias;
  float eps;
  bool centred;
};

template <typename T>
void norm_row(const T* x, T* residual, float factor, float scale_sum, const Norm& n, T* out, long width) {
  F total = splat(0.0f), squares = splat(0.0f);
  for (long i = 0; i < width; i += LANES) {
    F v = load(x + i);
    if (residual) {
      // The sum is rounded before the norm, as if it had been a separate operation.
      store(residual + i, (v * factor + load(residual + i)) * scale_sum);
      v = load(residual + i);
    }
    total += v;
    squares += v * v;
  }
  if (!n.weight) return;  // Only the sum is wanted.
  const T* source = residual ? residual : x;
  float mean = n.centred ? sum(total) / width : 0.0f;
  if (n.centred) {
    squares = splat(0.0f);
    for (long i = 0; i < width; i += LANES) {
      F v = load(source + i) - mean;
      squares += v * v;
    }
  }
  float scale = 1.0f / std::sqrt(sum(squares) / width + n.eps);
  for (long i = 0; i < width; i += LANES) {
    F v = (load(source + i) - mean) * scale * load(n.weight + i);
    store(out + i, n.bias ? v + load(n.bias + i) : v);
  }
}

// The norm of x [tokens, width]; with `residual`, of scale_sum * (residual + factor * x), which is written to `residual`.
template <typename T>
void norm(const T* x, T* residual, float factor, float scale_sum, const Norm& n, T* out, long tokens, long width, int threads) {
  each_token(tokens, width, threads, [&](long token) {
    long at = token * width;
    norm_row(x + at, residual ? residual + at : nullptr, factor, scale_sum, n, out + at, width);
  });
}

enum Activation : int32_t { SILU, GELU, OSS, RELU2 };

// The one with tanh, 0.5 (1 + tanh(y)) = sigmoid(2 y).
inline F gelu(F x) { return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x)); }

// act(gate) * up of gate_up [tokens, 2 * width]; without a gate, rows are [width], and up is 1. OSS is the activation of
// gpt-oss, gate * sigmoid(1.702 gate) * (up + 1) of clamped numbers.
template <typename T>
void gate(const T* gate_up, T* out, long tokens, long width, Activation activation, bool gated, int threads) {
  each_token(tokens, 2 * width, threads, [&](long token) {
    const T* row = gate_up + token * (gated ? 2 : 1) * width;
    for (long i = 0; i < width; i += LANES) {
      F g = load(row + i), up = gated ? load(row + width + i) : splat(1.0f), y = g;
      if (activation == OSS) {
        g = g > 7.0f ? splat(7.0f) : g;
        up = up > 7.0f ? splat(7.0f) : up < -7.0f ? splat(-7.0f) : up;
        up += 1.0f;
        y = 1.702f * g;
      }
      F activated = activation == GELU ? gelu(g) : g * (activation == RELU2 ? maximum(g, splat(0.0f)) : sigmoid(y));
      store(out + token * width + i, activated * up);
    }
  });
}

enum Gating : int32_t { BY_SIGMOID, OF_GELU };

// x * sigmoid(gates) or gelu(x) * gates, both [tokens, width], of gates whose rows are `stride` apart.
template <typename T>
void open(const T* x, const T* gates, long stride, T* out, long tokens, long width, Gating gating, int threads) {
  each_token(tokens, width, threads, [&](long token) {
    for (long i = 0; i < width; i += LANES) {
      F value = load(x + token * width + i), gate = load(gates + token * stride + i);
      store(out + token * width + i, gating == BY_SIGMOID ? value * sigmoid(gate) : gelu(value) * gate);
    }
  });
}

// (norm(factor * x) + second) * scale, of rows [width]: what each layer reads of a token beside the residual stream.
template <typename T>
void token_inputs(const T* x, const T* second, const Norm& n, float factor, float scale, T* out, long rows, long width,
                  int threads) {
  each_token(rows, width, threads, [&](long row) {
    const T* from = x + row * width;
    F squares = splat(0.0f);
    for (long i = 0; i < width; i += LANES) {
      F v = load(from + i) * factor;
      squares += v * v;
    }
    float inverse_rms = factor / std::sqrt(sum(squares) / width + n.eps);
    for (long i = 0; i < width; i += LANES)
      store(out + row * width + i,
            (load(from + i) * inverse_rms * load(n.weight + i) + load(second + row * width + i)) * scale);
  });
}

// What the operations of a layer's attention have in common; `Heads` in parts.py.
struct Heads {
  int64_t heads, kv_heads, dim;
  const float* cos_sin;      // [positions, dim], or null for no rotation
  const float* temperature;  // [positions], factors on queries, or null
  const float* norms;        // [heads + kv_heads, dim], or null
  const float* sinks;        // [heads], or null
  float eps, scale, softcap; // softcap: 0 for none
  int32_t centred, whole, after;  // Norms: of x - mean(x); over all heads together; after the rotation.
  int32_t values;            // Norms: values too, each head alone and without a weight.
  int32_t window;            // 0 for none
  int32_t tiled;             // Whether windows are side by side.
  int32_t causal;            // Whether tokens attend to none after them, whatever a step says of images.
};

// 1 / sqrt(mean((x - mean)²) + eps) of x [width]; `mean` is an output, 0 unless the norm is centred.
template <typename T>
float inverse(const T* x, long width, bool centred, float eps, float& mean) {
  F total = splat(0.0f), squares = splat(0.0f);
  mean = 0.0f;
  if (centred) {
    for (long i = 0; i < width; i += LANES) total += load(x + i);
    mean = sum(total) / width;
  }
  for (long i = 0; i < width; i += LANES) {
    F v = load(x + i) - mean;
    squares += v * v;
  }
  return 1.0f / std::sqrt(sum(squares) / width + eps);
}

// Rotate one head [dim] in halves, after its norm or before it if it has one.
template <typename T>
void rotate(const T* x, const float* cos, const float* weight, float mean, float scale, const Heads& h, float factor,
            T* to) {
  int half = h.dim / 2;
  F squares = splat(0.0f);
  for (int i = 0; i < half; i += LANES) {
    F a = load(x + i), b = load(x + half + i);
    if (weight && !h.after) {
      a = (a - mean) * scale * load(weight + i);
      b = (b - mean) * scale * load(weight + half + i);
    }
    if (cos) {
      F c = load(cos + i), s = load(cos + half + i), turned = a * c - b * s;
      b = b * c + a * s;
      a = turned;
    }
    squares += a * a + b * b;
    float now = weight && h.after ? 1.0f : factor;
    store(to + i, a * now);
    store(to + half + i, b * now);
  }
  if (!weight || !h.after) return;
  float after = factor / std::sqrt(sum(squares) / h.dim + h.eps);
  for (long i = 0; i < h.dim; i += LANES) store(to + i, load(to + i) * after * load(weight + i));
}

template <typename T>
struct Rope {
  const Heads& heads;
  const T* qkv;
  long stride;  // From a row to the next one, which gates may follow.
  const int64_t *positions, *slots;
  T *q, *k_cache, *v_cache;
  long tokens;
  int threads;
};

// Write the values of a token, [kv_heads, dim], to the cache, each head normalised if its norms say so.
template <typename T>
void write_values(const T* row, const Heads& h, T* to) {
  long width = h.kv_heads * h.dim;
  if (!width) return;  // Heads without keys have no cache.
  if (!h.values) std::memcpy(to, row, sizeof(T) * width);
  for (long at = 0; h.values && at < width; at += h.dim) {
    float mean, inverse_rms = inverse(row + at, h.dim, false, h.eps, mean);
    for (long i = at; i < at + h.dim; i += LANES) store(to + i, load(row + i) * inverse_rms);
  }
}

// Rotate q and k, write k and v to the cache, and q to a tensor of its own.
template <typename T>
void rope(const Rope<T>& r) {
  const Heads& h = r.heads;
  each_token(r.tokens, (h.heads + 2 * h.kv_heads) * h.dim, r.threads, [&](long token) {
    const T* row = r.qkv + token * r.stride;
    long position = r.positions[token], slot = r.slots[token];
    const float* cos = h.cos_sin ? h.cos_sin + position * h.dim : nullptr;
    float factor = h.temperature ? h.temperature[position] : 1.0f;
    float mean = 0.0f, scale = 1.0f;
    for (long head = 0; head < h.heads + h.kv_heads; head++, row += h.dim) {
      bool is_q = head < h.heads;
      if (!is_q && slot < 0) return;  // A padding row is never written.
      const float* weight = h.norms ? h.norms + head * h.dim : nullptr;
      if (weight && h.whole) {
        if (head == 0) scale = inverse(row, h.heads * h.dim, false, h.eps, mean);
        if (head == h.heads) scale = inverse(row, h.kv_heads * h.dim, false, h.eps, mean);
      } else if (weight && !h.after) {
        scale = inverse(row, h.dim, h.centred, h.eps, mean);
      }
      T* to = is_q ? r.q + (token * h.heads + head) * h.dim
                   : r.k_cache + (slot * h.kv_heads + head - h.heads) * h.dim;
      rotate(row, cos, weight, mean, scale, h, is_q ? factor : 1.0f, to);
    }
    if (slot >= 0) write_values(row, h, r.v_cache + slot * h.kv_heads * h.dim);
  });
}
