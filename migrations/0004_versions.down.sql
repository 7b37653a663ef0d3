REVOKE SELECT ON public.catalogd_migrations FROM catalog_server;
