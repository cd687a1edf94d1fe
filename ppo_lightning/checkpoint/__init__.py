"""Checkpoints: written beside, synced, marked whole, renamed; then older ones are pruned.

checkpoints/step_000040/
  actor/               Hugging Face folder: AutoModelForCausalLM.from_pretrained reads it
  adapter/             with LoRA: the adapter as it is trained, for resuming; actor/ has it merged in
  critic.safetensors   value model
  optimizer_*.pt       tensors and plain numbers only
  state.json           every other mutable value of the run
  COMPLETE             written last: size and SHA-256 of every file; a folder without it is not a checkpoint
"""
