"""Count a user's own module without giving it memory: parameters, FLOPs, what autograd keeps."""
