// Feed-forward blocks of experts: each token takes its best few, and the rows of a step are grouped by expert.
//
// A token's results are added in the order of its experts' numbers, in fp32, so they have the same bits in any batch.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "quantized.h"
#include "rows.h"

template <typename T, typename Out>
void product(const T* x, const Matrix& m, Out* out, long rows, int threads) {
  if (m.bits == 0)
    return linear(x, (const T*)m.weight, (const T*)m.bias, out, rows, m.outputs, m.inputs, threads);
  Quantized weight{(const uint8_t*)m.weight, (const bf16*)m.scales, (const bf16*)m.shifts, m.group, (int32_t)m.bits};
  linear(x, weight, (const T*)m.bias, out, rows, m.outputs, m.inputs, threads);
}

inline void softmax(float* x, long count) {
  float top = *std::max_element(x, x + count), total = 0.0f;
  for (long i = 0; i < count; i++) total += x[i] = std::exp(x[i] - top);
  for (long i = 0; i < count; i++) x[i] /= total;
}

// Exclude the experts of all groups but the best from the choice.
inline void leave_groups(const Experts& e, std::vector<int32_t>& order, std::vector<float>& choice) {
  long size = e.number / e.groups;
  std::vector<float> quality(e.groups);
  for (long g = 0; g < e.groups; g++) {
    float best = -INFINITY, second = -INFINITY;
    for (long i = g * size; i < (g + 1) * size; i++) {
      if (choice[i] > best) second = best, best = choice[i];
      else if (choice[i] > second) second = choice[i];
    }
    quality[g] = e.best_two ? best + second : best;
  }
  order.resize(e.groups);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return quality[a] > quality[b]; });
  for (long rank = e.chosen_groups; rank < e.groups; rank++)
    std::fill_n(choice.begin() + order[rank] * size, size, -INFINITY);
}

// Choose the best expert again and again; see `_mix_sparsely`.
inline void mix_sparsely(const Experts& e, const float* logits, int32_t* chosen, float* weights,
                         std::vector<float>& left) {
  left.assign(logits, logits + e.number);
  for (long rank = 0; rank < e.top_k; rank++) {
    long place = std::max_element(left.begin(), left.end()) - left.begin();
    float best = left[place], total = 0.0f;
    for (long i = 0; i < e.number; i++) {
      bool far = (best - logits[i]) / std::max(std::abs(logits[i]), best) > 2.0f * e.jitter;
      if (!far) total += std::exp(left[i] - best);
    }
    chosen[rank] = place;
    weights[rank] = 1.0f / total;
    left[place] = -INFINITY;
  }
}

// Choose the experts of a token from its logits, which become scores; `order` is scratch of as many numbers.
inline void choose(const Experts& e, float* logits, int32_t* chosen, float* weights, std::vector<int32_t>& order,
                   std::vector<float>& choice) {
  long number = e.number, k = e.top_k;
  if (e.mixer) return mix_sparsely(e, logits, chosen, weights, choice);
  if (!e.late_softmax) {
    if (e.sigmoid)
      for (long i = 0; i < number; i++) logits[i] = 1.0f / (1.0f + std::exp(-logits[i]));
    else
      softmax(logits, number);
  }
  choice.assign(logits, logits + number);
  if (e.correction && !e.late_softmax)
    for (long i = 0; i < number; i++) choice[i] += e.correction[i];
  if (e.groups > 1 && !e.late_softmax) leave_groups(e, order, choice);
  order.resize(number);
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](int a, int b) { return choice[a] > choice[b] || (choice[a] == choice[b] && a < b); });
  float total = 0.0f;
  for (long i = 0; i < k; i++) {
    chosen[i] = order[i];
    total += weights[i] = logits[order[i]];
  }
  if (e.late_softmax) {
    softmax(weights, k);
    for (long i = 0; i < k; i++) weights[i] *= e.scale;
    return;
  }
  float factor = e.normalised ? e.scale / std::max(total, e.floor) : e.scale;
  for (long i = 0; i < k; i++) weights[i] *= factor;
}

template <typename T>
class Mixture {
  Scratch<float> rows_, logits_, weights_, sums_, results_;
  std::vector<int32_t> chosen_;
  std::vector<std::vector<int32_t>> takers_;  // By expert, places in `chosen_`.
  Scratch<T> inputs_, hidden_, gated_;

  void route(const Experts& e, const T* x, long tokens, long width, int threads) {
    rows_.resize(tokens * width);
    logits_.resize(tokens * e.number);
    chosen_.resize(tokens * e.top_k);
    weights_.resize(tokens * e.top_k);
    for (long i = 0; i < tokens * width; i += LANES) store(rows_.data() + i, load(x + i));
    product(rows_.data(), e.router, logits_.data(), tokens, threads);
    each_token(tokens, e.number * 16, threads, [&](long token) {
      thread_local std::vector<int32_t> order;
      thread_local std::vector<float> choice;
      int32_t* chosen = chosen_.data() + token * e.top_k;
      float* weights = weights_.data() + token * e.top_k;
      choose(e, logits_.data() + token * e.number, chosen, weights, order, choice);
      for (long i = 0; e.factors && i < e.top_k; i++) weights[i] *= e.factors[chosen[i]];
    });
    takers_.resize(e.number);
    for (auto& takers : takers_) takers.clear();
    for (long place = 0; place < tokens * e.top_k; place++) takers_[chosen_[place]].push_back(place);
  }

  // Begin the sums with the shared experts' results, times their gate.
  void begin(const Experts& e, const T* shared, long tokens, long width, int threads) {
    sums_.assign(tokens * width, 0.0f);
    if (!shared) return;
    each_token(tokens, width, threads, [&](long token) {
      const float* row = rows_.data() + token * width;
      F total = splat(0.0f);
      if (e.shared_gate)
        for (long i = 0; i < width; i += LANES) total += load(row + i) * load(e.shared_gate + i);
      float factor = e.shared_gate ? 1.0f / (1.0f + std::exp(-sum(total))) : e.shared_scale;
      for (long i = 0; i < width; i += LANES)
        store(sums_.data() + token * width + i, load(shared + token * width + i) * factor);
    });
  }

  // Copy the input of an expert; with weights of inputs, times the weight, which the result has no more then.
  void take(const Experts& e, const T* x, T* to, long place, long width) {
    x += place / e.top_k * width;
    if (!e.of_inputs) {
      std::memcpy(to, x, width * sizeof(T));
      return;
    }
    T weight[LANES];
    store(weight, splat(weights_[place]));
    for (long i = 0; i < width; i += LANES) store(to + i, load(x + i) * number(weight[0]));
    weights_[place] = 1.0f;
  }

 public:
  void mix(const ExpertsOp<T>& op, long tokens, int threads) {
    const Experts& e = op.experts;
    const long width = op.width;
    route(e, op.asked, tokens, width, threads);
    begin(e, op.shared, tokens, width, threads);
    for (long expert = 0; expert < e.number; expert++) {
      const auto& takers = takers_[expert];
      long count = takers.size(), inner = e.down[expert].inputs, outer = e.gate_up[expert].outputs;
      if (!count) continue;
      inputs_.resize(count * width);
      hidden_.resize(count * outer);
      gated_.resize(count * inner);
      results_.resize(count * width);
      for (long i = 0; i < count; i++) take(e, op.x, inputs_.data() + i * width, takers[i], width);
      product(inputs_.data(), e.gate_up[expert], hidden_.data(), count, threads);
      run(ActivateOp<T>{hidden_.data(), gated_.data(), inner, e.activation, outer != inner}, count, threads);
      product(gated_.data(), e.down[expert], results_.data(), count, threads);
      each_token(count, width, threads, [&](long i) {
        float* to = sums_.data() + takers[i] / e.top_k * width;
        for (long c = 0; c < width; c += LANES)
          store(to + c, load(to + c) + load(results_.data() + i * width + c) * weights_[takers[i]]);
      });
    }
    for (long i = 0; i < tokens * width; i += LANES) store(op.out + i, load(sums_.data() + i));
  }
};
