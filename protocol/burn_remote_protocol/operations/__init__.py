"""Operations of Burn's IR and extension rows: their table, rules, and form on the wire."""
