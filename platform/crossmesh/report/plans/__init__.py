"""Plans for people and scripts: tables, charts, files and runs."""
