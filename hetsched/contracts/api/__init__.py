"""Documents that the command line and the REST API return and that the database stores."""
