"""Eight JAX devices on this CPU, for a test module that imports this before anything computes."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
