// SPDX-License-Identifier: Apache-2.0
// doctest's main(); the cases are in the folders beside it, which mirror core/.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
