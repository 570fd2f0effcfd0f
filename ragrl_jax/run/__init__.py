"""What every entry point needs: player and questions made from a config, rewards, warnings."""
