"""Components as OCI image layouts, which any container registry carries."""
