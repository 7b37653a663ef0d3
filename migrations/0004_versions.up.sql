-- The server's role may read which migrations there were, so that doctor can say
-- whether the schema is the program's. Takes no lock that readers or writers feel.
GRANT SELECT ON public.catalogd_migrations TO catalog_server;
