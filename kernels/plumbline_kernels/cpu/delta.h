// Gated delta nets and state spaces: what `delta/net.py` computes in torch, token by token for all mixes of sequences.
//
// A state is too large for registers, and half of it fits the first-level cache. So each thread takes a few columns of the
// state of one head of one sequence through all tokens of the step.
#pragma once
#include <algorithm>
#include <cmath>

#include "rows.h"

namespace delta {

constexpr float LEAST = 1e-6f;      // Added to the squared length of keys and queries.
constexpr long CHANNELS = 256;      // That one part convolves.
constexpr int TOGETHER = 4;         // Vectors of columns that one part computes.

template <typename T>
struct Run {
  const DeltaOp<T>& op;
  const Step& step;
  long tokens;
  T* mixed;  // [tokens, channels]
  const Delta& d = op.delta;

  long keys() const { return d.key_heads * d.key_dim; }
  long values() const { return d.value_heads * d.value_dim; }
  long channels() const { return 2 * keys() + values(); }
  long first(long sequence) const { return step.all.query_start[sequence]; }
  long length(long sequence) const { return step.all.query_start[sequence + 1] - step.all.query_start[sequence]; }
  // A new sequence starts from zeros: its row still has the state of an earlier one.
  bool is_fresh(long sequence) const { return step.all.seq_lens[sequence] == length(sequence); }
};

// Convolve some channels of a sequence, and keep its last inputs.
template <typename T>
void convolve(const Run<T>& r, long sequence, long from, long to) {
  const Delta& d = r.d;
  long channels = r.channels(), before = d.taps - 1, length = r.length(sequence);
  const T* tokens = r.op.projected + r.first(sequence) * r.op.stride;
  T* kept = r.op.inputs + r.step.state_rows[sequence] * before * channels;
  bool fresh = r.is_fresh(sequence);
  // The input of a token of this step, or of one before it.
  auto input = [&](long token, long at) {
    if (token >= 0) return load(tokens + token * r.op.stride + at);
    return fresh ? splat(0.0f) : load(kept + (before + token) * channels + at);
  };
  for (long at = from; at < to; at += LANES) {
    for (long token = 0; token < length; token++) {
      F total = splat(0.0f);
      for (long tap = 0; tap < d.taps; tap++) total += input(token - before + tap, at) * load(d.conv + tap * channels + at);
      if (d.conv_bias) total += load(d.conv_bias + at);
      store(r.mixed + (r.first(sequence) + token) * channels + at, total * sigmoid(total));
    }
    // Upwards, so that none is overwritten before it is read.
    for (long i = 0; i < before; i++) store(kept + i * channels + at, input(length - before + i, at));
  }
}

// Copy a head's numbers as floats: with length 1 and a factor if it is not a state space.
template <typename T>
void take(const T* from, float* to, long width, bool scaled, float factor) {
  F squares = splat(0.0f);
  for (long i = 0; i < width; i += LANES) {
    F x = load(from + i);
    squares += x * x;
    store(to + i, x);
  }
  if (!scaled) return;
  float length = std::sqrt(sum(squares) + LEAST);
  for (long i = 0; i < width; i += LANES) store(to + i, load(to + i) / length * factor);
}

inline float softplus(float x) { return (x > 0.0f ? x : 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

// Take N vectors of columns of a state through the tokens of its sequence.
template <int N, typename T>
void walk(const Run<T>& r, long sequence, long head, long column, float* key, float* query) {
  const Delta& d = r.d;
  long key_head = d.tiled ? head % d.key_heads : head / (d.value_heads / d.key_heads), columns = d.value_dim;
  float* state = r.op.matrices + ((r.step.state_rows[sequence] * d.value_heads + head) * d.key_dim) * columns + column;
  if (r.is_fresh(sequence))
    for (long i = 0; i < d.key_dim; i++)
      for (int n = 0; n < N; n++) store(state + i * columns + n * LANES, splat(0.0f));
  float factor = 1.0f / std::sqrt((float)d.key_dim);
  for (long token = r.first(sequence), stop = token + r.length(sequence); token < stop; token++) {
    const T* mixed = r.mixed + token * r.channels();
    const T* gates = r.op.projected + token * r.op.stride + r.channels() + r.values();
    take(mixed + key_head * d.key_dim, query, d.key_dim, d.corrects, factor);
    take(mixed + r.keys() + key_head * d.key_dim, key, d.key_dim, d.corrects, 1.0f);
    float step = softplus(number(gates[(d.corrects ? d.value_heads : 0) + head]) + d.shifts[head]);
    float fading = std::exp(-d.rates[head] * step);
    float strength = d.corrects ? d.strength / (1.0f + std::exp(-number(gates[head]))) : step;
    F write[N], read[N];
    for (int n = 0; n < N; n++) read[n] = splat(0.0f);
    if (d.corrects)
      for (long i = 0; i < d.key_dim; i++)
        for (int n = 0; n < N; n++) {
          F faded = load(state + i * columns + n * LANES) * fading;
          store(state + i * columns + n * LANES, faded);
          read[n] += key[i] * faded;
        }
    for (int n = 0; n < N; n++) {
      write[n] = (load(mixed + 2 * r.keys() + head * columns + column + n * LANES) - read[n]) * strength;
      read[n] = splat(0.0f);
    }
    float rest = d.corrects ? 1.0f : fading;
    for (long i = 0; i < d.key_dim; i++)
      for (int n = 0; n < N; n++) {
        F now = load(state + i * columns + n * LANES) * rest + key[i] * write[n];
        store(state + i * columns + n * LANES, now);
        read[n] += query[i] * now;
      }
    for (int n = 0; n < N; n++) store(r.op.out + token * r.values() + head * columns + column + n * LANES, read[n]);
  }
}

template <typename T>
void walk_all(const Run<T>& r) {
  const Delta& d = r.d;
  constexpr long WIDTH = TOGETHER * LANES;
  long blocks = (d.value_dim + WIDTH - 1) / WIDTH;
  auto part = [&](uint32_t index) {
    thread_local Scratch<float> heads;
    heads.resize(2 * d.key_dim);
    float *key = heads.data(), *query = key + d.key_dim;
    long sequence = index / (d.value_heads * blocks), rest = index % (d.value_heads * blocks);
    long head = rest / blocks, column = rest % blocks * WIDTH;
    if (column + WIDTH <= d.value_dim) return walk<TOGETHER>(r, sequence, head, column, key, query);
    for (; column < d.value_dim; column += LANES) walk<1>(r, sequence, head, column, key, query);
  };
  pool().run(r.step.all.count * d.value_heads * blocks, r.step.threads, r.tokens * r.values() * d.key_dim, WORTH_ROWS, part);
}

// Normalise what a head of a delta net has read, and multiply it with silu(gate).
template <typename T>
void finish_head(T* x, const T* gate, const float* weight, float eps, long width) {
  float mean, scale = inverse(x, width, false, eps, mean);
  for (long i = 0; i < width; i += LANES) {
    F g = load(gate + i);
    store(x + i, load(x + i) * scale * load(weight + i));  // Rounded before the gate, as the models' own code does.
    store(x + i, load(x + i) * g * sigmoid(g));
  }
}

// Multiply what a group of a state space has read with silu(gate), and normalise it.
template <typename T>
void finish_group(T* x, const T* gate, const float* weight, float eps, long width, float* kept) {
  F squares = splat(0.0f);
  for (long i = 0; i < width; i += LANES) {
    F g = load(gate + i), y = load(x + i) * g * sigmoid(g);
    store(kept + i, y);
    squares += y * y;
  }
  float scale = 1.0f / std::sqrt(sum(squares) / width + eps);
  for (long i = 0; i < width; i += LANES) {
    store(x + i, load(kept + i) * scale);
    store(x + i, load(x + i) * load(weight + i));
  }
}

template <typename T>
void finish(const Run<T>& r, long token) {
  const Delta& d = r.d;
  const T *gate = r.op.projected + token * r.op.stride + r.channels(), *values = r.mixed + token * r.channels() + 2 * r.keys();
  T* x = r.op.out + token * r.values();
  if (d.corrects) {
    for (long at = 0; at < r.values(); at += d.value_dim) finish_head(x + at, gate + at, d.norm, d.eps, d.value_dim);
    return;
  }
  for (long head = 0; head < d.value_heads; head++)
    for (long i = head * d.value_dim; i < (head + 1) * d.value_dim; i += LANES)
      store(x + i, load(x + i) + d.skip[head] * load(values + i));
  if (!d.norm) {
    for (long i = 0; i < r.values(); i += LANES) {
      F g = load(gate + i);
      store(x + i, load(x + i) * g * sigmoid(g));
    }
    return;
  }
  thread_local Scratch<float> kept;
  long width = r.values() / d.key_heads;
  kept.resize(width);
  for (long at = 0; at < r.values(); at += width)
    finish_group(x + at, gate + at, d.norm + at, d.eps, width, kept.data());
}

}  // namespace delta

template <typename T>
void run(const DeltaOp<T>& op, const Step& step, long tokens) {
  using namespace delta;
  thread_local Scratch<T> mixed;
  Run<T> r{op, step, tokens, nullptr};
  mixed.resize(tokens * r.channels());
  r.mixed = mixed.data();
  long blocks = (r.channels() + CHANNELS - 1) / CHANNELS;
  pool().run(step.all.count * blocks, step.threads, tokens * r.channels() * op.delta.taps, WORTH_ROWS, [&](uint32_t index) {
    long from = index % blocks * CHANNELS, to = from + CHANNELS;
    convolve(r, index / blocks, from, to < r.channels() ? to : r.channels());
  });
  walk_all(r);
  each_token(tokens, 2 * r.values(), step.threads, [&](long token) { finish(r, token); });
}

// Convolve the gated inputs of a sequence's tokens for some channels, and keep the last ones.
template <typename T>
void convolve(const ShortConvOp<T>& op, const Step& step, T* gated, long sequence, long from, long to) {
  long first = step.all.query_start[sequence], length = step.all.query_start[sequence + 1] - first;
  long width = op.width, before = op.taps - 1;
  bool fresh = step.all.seq_lens[sequence] == length;
  const T* rows = op.projected + first * 3 * width;
  T* kept = op.inputs + step.state_rows[sequence] * before * width;
  gated += first * width;
  T* out = op.out + first * width;
  auto input = [&](long token, long at) {
    if (token >= 0) return load(gated + token * width + at);
    return fresh ? splat(0.0f) : load(kept + (before + token) * width + at);
  };
  for (long at = from; at < to; at += LANES) {
    for (long token = 0; token < length; token++) {
      const T* row = rows + token * 3 * width + at;
      store(gated + token * width + at, load(row) * load(row + 2 * width));
      F total = splat(0.0f);
      for (long tap = 0; tap <= before; tap++) total += input(token - before + tap, at) * load(op.conv + tap * width + at);
      if (op.conv_bias) total += load(op.conv_bias + at);
      T* to_row = out + token * width + at;
      store(to_row, total);  // Rounded before the gate, as if it had been a separate operation.
      store(to_row, load(to_row) * load(row + width));
    }
    // Upwards, so that none is overwritten before it is read.
    for (long i = 0; i < before; i++) store(kept + i * width + at, input(length - before + i, at));
  }
}

template <typename T>
void run(const ShortConvOp<T>& op, const Step& step, long tokens) {
  thread_local Scratch<T> gated;
  gated.resize(tokens * op.width);
  T* to = gated.data();
  long blocks = (op.width + delta::CHANNELS - 1) / delta::CHANNELS;
  pool().run(step.all.count * blocks, step.threads, tokens * op.width * op.taps, WORTH_ROWS, [&, to](uint32_t index) {
    long from = index % blocks * delta::CHANNELS, stop = std::min(from + delta::CHANNELS, (long)op.width);
    convolve(op, step, to, index / blocks, from, stop);
  });
}
