"""Programs in other languages that read bodies as upstreams do, with the JSON decoder that their language's servers use."""
