"""REST of accounts: sessions, tokens and the audit trail."""
