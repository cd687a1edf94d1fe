"""Who scores a response: rule functions in killable workers, reward models, managers."""
