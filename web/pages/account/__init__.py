"""Pages of accounts: sessions, tokens, webhooks and the audit trail."""
