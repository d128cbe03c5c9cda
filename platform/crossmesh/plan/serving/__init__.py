"""An engine before it is started: does it hold the model and its requests, and how fast are they answered."""
