// The draw of `plumbline_kernels.sampling`: temperature, top-k, top-p, min-p, and Gumbel noise by seed and position.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "layout.h"
#include "threads.h"
#include "vector.h"

constexpr uint32_t GOLDEN = 0x9E3779B1, SECOND = 0x7F4A7C15, MIX_1 = 0x7FEB352D, MIX_2 = 0x846CA68B;

template <typename W>
inline W mix(W x, W key) {
  x = (x ^ (x >> 16)) * MIX_1 ^ key;
  x = (x ^ (x >> 15)) * MIX_2;
  return x ^ (x >> 16);
}

// The natural logarithm of positive normal numbers, with a relative error of a few 1e-7 (the polynomial of Cephes' logf).
inline F logarithm(F x) {
  I bits = (I)x;
  I exponent = ((bits - 0x3f3504f3) >> 23);  // The mantissa is taken between sqrt(1/2) and sqrt(2).
  F m = (F)(bits - (exponent << 23)) - 1.0f;
  F p = splat(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  F square = m * m, e = __builtin_convertvector(exponent, F);
  F y = p * m * square + e * -2.12194440e-4f - 0.5f * square;
  return m + y + e * 0.693359375f;
}

// log(1 + x) for x in (-1, 0), precise for small x as well.
inline F logarithm_plus_1(F x) {
  F u = x + 1.0f, difference = u - 1.0f;
  F ratio = difference == 0.0f ? splat(1.0f) : x / difference;
  F y = logarithm(u);
  return difference == 0.0f ? x : y * ratio;
}

// log(-log(1 - u)) of the uniform numbers of some tokens; see `_log_exponential` in sampling.py.
inline F log_exponential(U tokens, uint32_t first, uint32_t second) {
  U bits = mix((tokens * GOLDEN) ^ first, U{} + second) & 0x7fffffff;
  F x = __builtin_convertvector((I)bits, F) * -0x1p-31f - 0x1p-32f;
  x = x < 0x1p-24f - 1.0f ? splat(0x1p-24f - 1.0f) : x;
  return logarithm(-logarithm_plus_1(x));
}

// One row of logits.
class Row {
  const float* logits_;
  long vocab_;
  float most_;
  // Tokens that are e^-30 times as likely as the first are never drawn with a filter. Most filters keep some of the e^-6.
  static constexpr float RANGES[] = {6.0f, 30.0f};

  template <typename Visit>
  void each(const Visit& visit) const {
    long i = 0;
    for (; i + LANES <= vocab_; i += LANES) visit(load(logits_ + i), i, LANES);
    if (i < vocab_) {
      float rest[LANES];
      for (int n = 0; n < LANES; n++) rest[n] = i + n < vocab_ ? logits_[i + n] : -INFINITY;
      visit(load(rest), i, (int)(vocab_ - i));
    }
  }

  // The logits that are at least `least`, in the order of their tokens.
  std::vector<float> at_least(float least) const {
    std::vector<float> found;
    each([&](F x, long, int count) {
      if (largest(x) < least) return;
      for (int n = 0; n < count; n++)
        if (x[n] >= least) found.push_back(x[n]);
    });
    return found;
  }

  float mass(float temperature) const {
    F sums = splat(0.0f);
    float scale = LOG2E / temperature;
    each([&](F x, long, int) { sums += exp2((x - most_) * scale); });
    return sum(sums);
  }

  // The mass of some logits.
  double mass(const float* from, const float* to, float temperature) const {
    const float scale = LOG2E / temperature;
    F sums = splat(0.0f);
    for (; to - from >= LANES; from += LANES) sums += exp2((load(from) - most_) * scale);
    double total = sum(sums);
    for (; from < to; from++) total += exp2(splat((*from - most_) * scale))[0];
    return total;
  }

  // The least logit of the likeliest of `kept` that have the mass `wanted` together, or NaN if all have less. Halves the
  // range that it is in, because sorting a flat distribution took most of a draw.
  float nucleus(std::vector<float>& kept, float temperature, float wanted) const {
    float *first = kept.data(), *last = first + kept.size();
    // A row of NaN keeps nothing, and wants NaN.
    if (kept.empty() || !(mass(first, last, temperature) >= wanted)) return NAN;
    double before = 0;
    while (last - first > 1) {
      float* middle = first + (last - first) / 2;
      std::nth_element(first, middle, last, std::greater<float>());
      double upper = mass(first, middle, temperature);
      if (before + upper >= wanted) {
        last = middle;
      } else {
        before += upper;
        first = middle;
      }
    }
    return *first;
  }

 public:
  Row(const float* logits, long vocab) : logits_(logits), vocab_(vocab) {
    F top = splat(-INFINITY);
    each([&](F x, long, int) { top = maximum(x, top); });
    most_ = largest(top);
  }

  long first() const {
    for (long i = 0; i < vocab_; i++)
      if (logits_[i] == most_) return i;
    return 0;
  }

  // The least logit that the filters keep.
  float threshold(float temperature, long top_k, float top_p, float min_p) const {
    float least = min_p > 0 ? most_ + temperature * std::log(min_p) : -INFINITY;
    bool limited = top_k > 0 && top_k < vocab_;
    if (!limited && top_p >= 1) return least;
    float wanted = limited ? 0 : top_p * mass(temperature);
    for (float range : RANGES) {
      bool last = range == RANGES[1];
      float lowest = most_ - range * temperature;
      std::vector<float> kept = at_least(lowest);
      if (limited && (long)kept.size() >= top_k) {
        std::nth_element(kept.begin(), kept.begin() + (top_k - 1), kept.end(), std::greater<float>());
        lowest = kept[top_k - 1];
        // Tokens that tie with the last one are kept.
        kept.erase(std::remove_if(kept.begin(), kept.end(), [&](float x) { return x < lowest; }), kept.end());
      } else if (limited && !last) {
        continue;
      }
      if (top_p >= 1) return std::max(least, lowest);
      if (limited) {
        wanted = 0;
        for (float x : kept) wanted += std::exp((x - most_) / temperature);
        wanted *= top_p;
      }
      float found = nucleus(kept, temperature, wanted);
      if (found == found) return std::max(least, found);
      if (limited || last) return std::max(least, lowest);
    }
    return least;
  }

  long draw(float temperature, float least, int64_t seed, int64_t position) const {
    uint32_t low = (uint32_t)seed, high = (uint32_t)((uint64_t)seed >> 32);
    uint32_t first = mix<uint32_t>(mix<uint32_t>(mix<uint32_t>(low, 0) ^ high, 0) ^ (uint32_t)position, 0);
    uint32_t second = mix<uint32_t>(mix<uint32_t>(first ^ SECOND, 0) ^ low, 0);
    F best = splat(-INFINITY);
    I where{};
    const I lanes = numbers();
    each([&](F x, long i, int) {
      if (largest(x) < least) return;
      I tokens = lanes + (int)i;
      F score = x / temperature - log_exponential((U)tokens, first, second);
      score = x < least ? splat(-INFINITY) : score;
      I better = score > best;
      best = better ? score : best;
      where = better ? tokens : where;
    });
    int lane = 0;
    for (int n = 1; n < LANES; n++)
      if (best[n] > best[lane] || (best[n] == best[lane] && where[n] < where[lane])) lane = n;
    return where[lane];
  }
};

inline void draw(const Draws& d) {
  auto part = [&](uint32_t r) {
    Row row(d.logits + r * d.vocab, d.vocab);
    if (d.temperature[r] == 0) {
      d.out[r] = row.first();
      return;
    }
    float least = row.threshold(d.temperature[r], d.top_k[r], d.top_p[r], d.min_p[r]);
    d.out[r] = row.draw(d.temperature[r], least, d.seeds[r], d.positions[r]);
  };
  pool().run(d.rows, d.threads, d.rows * d.vocab, 1 << 13, part);
}
