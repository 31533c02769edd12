"""REST resources of accounts: sessions, tokens and the audit trail."""
