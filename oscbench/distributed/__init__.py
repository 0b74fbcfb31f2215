"""What Ray does: joining a cluster, training, extracting, searching, sharding; all else runs without it."""
