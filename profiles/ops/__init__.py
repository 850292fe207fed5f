"""The study of the row operators, and of models made of them."""
