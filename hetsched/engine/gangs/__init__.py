"""Capacity and topology domains of gangs; the plugin `gang` decides with these modules."""
