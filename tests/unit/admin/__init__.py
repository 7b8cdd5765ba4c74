"""Operations of an administrator, without a broker."""
