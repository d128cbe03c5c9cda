"""What can be rented and how its devices are arranged: the catalogue, the device union and pure mesh shapes."""
