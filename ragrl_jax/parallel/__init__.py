"""Devices and hosts: the mesh, the sharding rules, and signals."""
