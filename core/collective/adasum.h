// SPDX-License-Identifier: Apache-2.0
// Adasum (S. Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021):
// the sum of two vectors without what they have in common, which a step along both would do twice.
//
//   left' = (1 - left.right / (2 left.left)) left + (1 - left.right / (2 right.right)) right
//
// Orthogonal vectors are added, and parallel ones of one length averaged. A vector of zeros changes
// nothing; NaN in one makes all of the result NaN. More than two are combined as a tree:
// neighbours, then neighbours among the results; the last of an odd number goes on as it is.
#pragma once

#include <cstddef>

namespace tw {

// Of two vectors, or of parts of them: those of all parts are added up.
struct Products {
  double both = 0, left = 0, right = 0;  // left.right, left.left and right.right

  Products& operator+=(const Products& more) {
    both += more.both;
    left += more.left;
    right += more.right;
    return *this;
  }
};

// In double, and in an order that depends on `count` alone. Real is float or double.
template <class Real>
Products products_of(const Real* left, const Real* right, size_t count);
// result = left' of vectors, or of parts of vectors whose products these are; it may be one of
// them.
template <class Real>
void adasum(const Products& products, const Real* left, const Real* right, Real* result,
            size_t count);

}  // namespace tw
