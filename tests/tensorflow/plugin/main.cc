// SPDX-License-Identifier: Apache-2.0
// doctest's main(), for the units of the plugin that need no TensorFlow.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
