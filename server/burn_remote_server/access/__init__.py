"""Who may come, where may this server go, and how much may each use?"""
