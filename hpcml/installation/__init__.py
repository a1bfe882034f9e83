"""What brings hpcml to machines that install nothing from outside: hpcml as one file, and a folder of wheels."""
