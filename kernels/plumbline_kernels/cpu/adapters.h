// Low-rank products of adapters, added to the results of a linear layer; the rows of a step are grouped by adapter.
//
// Each row is multiplied alone by the sums of product.h, so it has the same bits in any batch.
#pragma once
#include <algorithm>
#include <vector>

#include "experts.h"

// The two projections of an adapter at one linear layer; `down.weight` is null if it has none there.
struct Pair {
  Matrix down, up;  // [rank, inputs] and [outputs, rank]
};

// `Adapters` in parts.py.
struct Adapters {
  const Pair* pairs;  // By slot.
};

// The groups of a step; `AdapterRows` in _attention_batch.py.
struct Groups {
  const int64_t *rows, *slots, *starts;
  int64_t count;
};

template <typename T>
class Adaptation {
  std::vector<T> taken_, hidden_;
  std::vector<float> results_;

  // out[row] += up(down(x[row])) for `count` rows.
  void add(const Pair& pair, const int64_t* rows, long count, const T* x, long inputs, T* out, long outputs, int threads) {
    taken_.resize(count * inputs);
    hidden_.resize(count * pair.down.outputs);
    results_.resize(count * outputs);
    for (long i = 0; i < count; i++)
      std::memcpy(taken_.data() + i * inputs, x + rows[i] * inputs, inputs * sizeof(T));
    product(taken_.data(), pair.down, hidden_.data(), count, threads);
    product(hidden_.data(), pair.up, results_.data(), count, threads);
    each_token(count, outputs, threads, [&](long i) {
      T* to = out + rows[i] * outputs;
      const float* from = results_.data() + i * outputs;
      long c = 0;
      for (; c + LANES <= outputs; c += LANES) store(to + c, load(to + c) + load(from + c));
      for (; c < outputs; c++) {
        T lanes[LANES];
        store(lanes, splat(number(to[c]) + from[c]));
        to[c] = lanes[0];
      }
    });
  }

 public:
  // Add the products of the adapter of each row of the groups to out [tokens, outputs].
  void run(const Adapters& a, const Groups& groups, const T* x, long inputs, T* out, long outputs, int threads) {
    for (long group = 0; group < groups.count; group++) {
      const Pair& pair = a.pairs[groups.slots[group]];
      if (!pair.down.weight) continue;
      // In blocks, which bounds the scratch memory.
      for (long first = groups.starts[group], end = groups.starts[group + 1]; first < end; first += ROW_BLOCK)
        add(pair, groups.rows + first, std::min(end - first, ROW_BLOCK), x, inputs, out, outputs, threads);
    }
  }
};
