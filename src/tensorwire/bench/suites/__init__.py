# SPDX-License-Identifier: Apache-2.0
"""What is measured. Suites know contenders by their interface only, and find them by name."""
