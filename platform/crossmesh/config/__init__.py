"""The typed experiment: what an experiment may say, its checks, its composition from Hydra groups and its fingerprints."""
