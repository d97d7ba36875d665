"""The cache of partly prepared samples: memory first, then disk."""
