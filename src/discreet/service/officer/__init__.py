"""Accounts, grants, keys, the ledger and disclosures: the API and pages of privacy officers and admins."""
