// SPDX-License-Identifier: Apache-2.0
#include "collective/adasum.h"

#include <cstring>

#include "collective/default_rounding.h"

namespace tw {
namespace {

// Eight products each are added up apart, so that additions need not wait for each other, in
// vectors of the compiler's own.
constexpr size_t kLanes = 8;
typedef double Doubles __attribute__((vector_size(kLanes * sizeof(double))));

template <class Real>
struct Lanes {
  typedef Real Type __attribute__((vector_size(kLanes * sizeof(Real))));
};

template <class Real>
inline void load(const Real* from, size_t count, Doubles* to) {
  typename Lanes<Real>::Type values{};
  std::memcpy(&values, from, count * sizeof(Real));
  *to = __builtin_convertvector(values, Doubles);
}

inline double sum_of(const Doubles& lanes) {
  double sum = 0;
  for (size_t k = 0; k < kLanes; ++k) sum += lanes[k];
  return sum;
}

}  // namespace

template <class Real>
Products products_of(const Real* left, const Real* right, size_t count) {
  const DefaultRounding rounding;
  Doubles both{}, of_left{}, of_right{};
  const auto add = [&](size_t at, size_t lanes) {
    Doubles l, r;
    load(left + at, lanes, &l);
    load(right + at, lanes, &r);
    both += l * r;
    of_left += l * l;
    of_right += r * r;
  };
  size_t at = 0;
  for (; at + kLanes <= count; at += kLanes) add(at, kLanes);
  if (at < count) add(at, count - at);
  return {sum_of(both), sum_of(of_left), sum_of(of_right)};
}

template <class Real>
void adasum(const Products& products, const Real* left, const Real* right, Real* result,
            size_t count) {
  const DefaultRounding rounding;
  const auto keeps = [&](double square) {
    return square == 0 ? 1 : 1 - products.both / (2 * square);
  };
  const double of_left = keeps(products.left), of_right = keeps(products.right);
  for (size_t i = 0; i < count; ++i)
    result[i] = static_cast<Real>(of_left * left[i] + of_right * right[i]);
}

template Products products_of(const float*, const float*, size_t);
template Products products_of(const double*, const double*, size_t);
template void adasum(const Products&, const float*, const float*, float*, size_t);
template void adasum(const Products&, const double*, const double*, double*, size_t);

}  // namespace tw
