"""Checkpoints: written beside, synced, renamed, marked whole last; then older ones are pruned.

checkpoints/step_000040/
  actor/               Hugging Face folder: AutoModelForCausalLM.from_pretrained reads it
  critic.safetensors   value model
  optimizer_*.pt       tensors and plain numbers only
  state.json           every other mutable value of the run
  COMPLETE             written last; a folder without it is not a checkpoint
"""
