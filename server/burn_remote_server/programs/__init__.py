"""Operations that are ready to run: single ones (plans), graphs and fused runs."""
