"""The check `loss_head`."""
