// Gives the precompiled header of the modules a target to belong to.
