"""The bundled decode engine: paged KV, continuous batching, chunked prefill."""
