// Low-rank products of adapters, added to the results of a linear layer; the rows of a step are grouped by adapter.
//
// Each row is multiplied alone by the sums of product.h, so it has the same bits in any batch.
#pragma once
#include <algorithm>

#include "experts.h"

template <typename T>
class Adaptation {
  Scratch<T> taken_, hidden_;
  Scratch<float> results_;

  // out[row] += up(down(x[row])) for `count` rows.
  void add(const AdaptOp<T>& op, const Pair& pair, const int64_t* rows, long count, int threads) {
    const long inputs = op.inputs, outputs = op.outputs;
    taken_.resize(count * inputs);
    hidden_.resize(count * pair.down.outputs);
    results_.resize(count * outputs);
    for (long i = 0; i < count; i++)
      std::memcpy(taken_.data() + i * inputs, op.x + rows[i] * inputs, inputs * sizeof(T));
    product(taken_.data(), pair.down, hidden_.data(), count, threads);
    product(hidden_.data(), pair.up, results_.data(), count, threads);
    each_token(count, outputs, threads, [&](long i) {
      T* to = op.out + rows[i] * outputs;
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
  void run(const AdaptOp<T>& op, const Groups& groups, int threads) {
    for (long group = 0; group < groups.count; group++) {
      const Pair& pair = op.pairs[groups.slots[group]];
      if (!pair.down.weight) continue;
      // In blocks, which bounds the scratch memory.
      for (long first = groups.starts[group], end = groups.starts[group + 1]; first < end; first += ROW_BLOCK)
        add(op, pair, groups.rows + first, std::min(end - first, ROW_BLOCK), threads);
    }
  }
};
