// Operations that treat each token alone: norms, gated activations, rotation with the cache write.
#pragma once
#include <cmath>

#include "layout.h"
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

template <typename T>
void run(const AddNormOp<T>& op, long tokens, int threads) {
  each_token(tokens, op.width, threads, [&](long token) {
    long at = token * op.width;
    norm_row(op.x + at, op.residual ? op.residual + at : nullptr, op.factor, op.scale, op.norm, op.out + at, op.width);
  });
}

// The one with tanh, 0.5 (1 + tanh(y)) = sigmoid(2 y).
inline F gelu(F x) { return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x)); }

// The one with the error function, by the polynomial 7.1.26 of Abramowitz and Stegun, as in swiglu.py.
inline F gelu_erf(F x) {
  F size = maximum(x, -x) * 0.7071067811865476f, t = 1.0f / (1.0f + 0.3275911f * size);
  F rest = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  rest *= exp2(size * size * -LOG2E);
  return 0.5f * x * (x < 0.0f ? rest : 2.0f - rest);
}

inline F xielu(F x, const float* curve) {
  F most = splat(curve[3]), low = x < most ? x : most;
  F below = (exp2(low * LOG2E) - 1.0f - x) * curve[1];
  return (x > 0.0f ? curve[0] * x * x : below) + curve[2] * x;
}

inline F activate(long activation, F x, F power) {
  if (activation == GELU_TANH) return gelu(x);
  if (activation == GELU) return gelu_erf(x);
  F positive = maximum(x, splat(0.0f));
  if (activation == RELU) return positive;
  return x * (activation == RELU2 ? positive : sigmoid(power));
}

// SWIGLU_OSS is the activation of gpt-oss, gate * sigmoid(1.702 gate) * (up + 1) of clamped numbers.
template <typename T>
void run(const ActivateOp<T>& op, long tokens, int threads) {
  const T* x = op.x;
  T* out = op.out;
  const long width = op.width, activation = op.activation;
  const bool gated = op.gated;
  each_token(tokens, 2 * width, threads, [&](long token) {
    const T* row = x + token * (gated ? 2 : 1) * width;
    for (long i = 0; i < width; i += LANES) {
      F g = load(row + i), up = gated ? load(row + width + i) : splat(1.0f), y = g;
      if (activation == SWIGLU_OSS) {
        g = g > 7.0f ? splat(7.0f) : g;
        up = up > 7.0f ? splat(7.0f) : up < -7.0f ? splat(-7.0f) : up;
        up += 1.0f;
        y = 1.702f * g;
      }
      F activated = activation == XIELU ? xielu(g, op.curve) : activate(activation, g, y);
      store(out + token * width + i, activated * up);
    }
  });
}

template <typename T>
void run(const GateOp<T>& op, long tokens, int threads) {
  each_token(tokens, op.width, threads, [&](long token) {
    for (long i = 0; i < op.width; i += LANES) {
      F value = load(op.x + token * op.width + i), gate = load(op.gates + token * op.stride + i);
      store(op.out + token * op.width + i, op.by_gelu ? gelu(value) * gate : value * sigmoid(gate));
    }
  });
}

template <typename T>
void run(const TokenInputsOp<T>& op, long tokens, int threads) {
  const long width = op.width;
  const float factor = op.factor;
  each_token(tokens * op.layers, width, threads, [&](long row) {
    const T* from = op.x + row * width;
    F squares = splat(0.0f);
    for (long i = 0; i < width; i += LANES) {
      F v = load(from + i) * factor;
      squares += v * v;
    }
    float inverse_rms = factor / std::sqrt(sum(squares) / width + op.norm.eps);
    for (long i = 0; i < width; i += LANES)
      store(op.out + row * width + i,
            (load(from + i) * inverse_rms * load(op.norm.weight + i) + load(op.second + row * width + i)) * op.scale);
  });
}

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

template <typename T>
void run(const RopeOp<T>& op, const Step& step, long tokens) {
  const Heads& h = op.heads;
  each_token(tokens, (h.heads + 2 * h.kv_heads) * h.dim, step.threads, [&](long token) {
    const T* row = op.qkv + token * op.stride;
    long position = step.positions[token], slot = step.slots[token];
    const float* cos = h.cos_sin ? h.cos_sin + position * h.dim : nullptr;
    float factor = h.temperature ? h.temperature[position] : 1.0f;
    float mean = 0.0f, scale = 1.0f;
    for (long head = 0; head < h.heads + h.kv_heads; head++, row += h.dim) {
      bool is_q = head < h.heads;
      if (!is_q && slot < 0) return;  // A padding row is never written.
      const float* weight = h.weights ? h.weights + head * h.dim : nullptr;
      if (weight && h.whole) {
        if (head == 0) scale = inverse(row, h.heads * h.dim, false, h.eps, mean);
        if (head == h.heads) scale = inverse(row, h.kv_heads * h.dim, false, h.eps, mean);
      } else if (weight && !h.after) {
        scale = inverse(row, h.dim, h.centred, h.eps, mean);
      }
      T* to = is_q ? op.out + (token * h.heads + head) * h.dim
                   : op.keys + (slot * h.kv_heads + head - h.heads) * h.dim;
      rotate(row, cos, weight, mean, scale, h, is_q ? factor : 1.0f, to);
    }
    if (slot >= 0) write_values(row, h, op.values + slot * h.kv_heads * h.dim);
  });
}
