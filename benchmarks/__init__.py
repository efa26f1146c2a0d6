"""Speed, memory and crossover: an asv suite asks for a package. Not part of linattest."""
