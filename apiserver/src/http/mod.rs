//! The HTTP surface: routing, content negotiation, handlers, the middleware order, TLS serving.
