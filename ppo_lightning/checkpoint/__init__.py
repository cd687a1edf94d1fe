"""Checkpoints: written beside, synced, renamed, marked whole last; then older ones are pruned.

checkpoints/step_000040/
  actor/               Hugging Face folder: AutoModelForCausalLM.from_pretrained reads it
  adapter/             with LoRA: the adapter as it is trained, for resuming; actor/ has it merged in
  critic.safetensors   value model
  optimizer_*.pt       tensors and plain numbers only
  state.json           every other mutable value of the run
  COMPLETE             written last; a folder without it is not a checkpoint
"""
