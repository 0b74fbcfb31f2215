"""EVM in reading order: gallery, tails, fits, cover; engines that compute; shard and source that answer."""
