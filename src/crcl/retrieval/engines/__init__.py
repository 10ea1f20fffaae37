"""Vectors in search engines that run elsewhere: Qdrant, and PostgreSQL with pgvector."""
