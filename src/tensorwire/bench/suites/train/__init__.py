# SPDX-License-Identifier: Apache-2.0
"""A training benchmark for TensorFlow clusters, with the options and output of tf_cnn_benchmarks.

``options`` says what is asked for, ``models`` and ``data`` what is computed on, ``updates`` how
workers agree on the parameters, ``task`` runs one process of a cluster, ``local`` all of them on
this machine, and ``compare`` the same work over several protocols.
"""
