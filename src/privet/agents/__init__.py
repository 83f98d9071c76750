"""What every agent does with a message; users import it from `privet.client_apps`."""
