"""What a run needs before there is a cluster for it: memory, speed, replicas, and a step played through on paper."""
