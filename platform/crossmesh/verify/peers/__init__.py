"""What others' stacks do of the same work: the peers that checks measure beside."""
