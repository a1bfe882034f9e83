"""What keeps runs of this user from working on this machine, looked for before they are submitted."""
