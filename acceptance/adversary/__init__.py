"""The adversarial device: a card that answers its driver badly, by a seed, and what kernels make of it."""
