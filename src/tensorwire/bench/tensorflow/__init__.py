"""``tensorwire bench tensorflow``: TensorFlow's data plane, over stock gRPC and over tensorwire."""
