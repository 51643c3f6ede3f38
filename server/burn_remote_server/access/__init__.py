"""Access control: authentication, TLS, rules for peers, and quotas."""
