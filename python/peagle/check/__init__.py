"""`peagle check`: tests of the sampler that a user actually runs."""
