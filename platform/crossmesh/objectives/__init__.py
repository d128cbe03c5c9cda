"""What a training minimizes: the interface of an objective, and supervised fine-tuning as the first."""
