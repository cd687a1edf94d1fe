"""Shape and type annotations of tensor functions are checked while tests run."""

from jaxtyping import install_import_hook

install_import_hook("ppo_lightning.algorithms", "beartype.beartype")
