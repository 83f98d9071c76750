"""What every agent does with a message.

Not public: what users and authors of algorithms import is in `privet.client_apps`.
"""
