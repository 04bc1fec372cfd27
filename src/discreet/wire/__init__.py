"""Data formats that the service, its client and the command line share: JSON, CSV and Arrow."""
