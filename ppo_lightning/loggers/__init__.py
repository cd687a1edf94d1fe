"""Takers of each step's metrics and samples besides metrics.jsonl: Weights & Biases, TensorBoard, CSV."""
