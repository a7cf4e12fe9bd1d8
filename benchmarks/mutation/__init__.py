"""Mutation testing of the cost model, the rules engine and the planner: how much of what is wrong do tests notice?"""
