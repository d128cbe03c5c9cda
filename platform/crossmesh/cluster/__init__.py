"""The Ray that a job runs on: its session, calls into worker environments, the nodes that are asked for, and a head that dies."""
