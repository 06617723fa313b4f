//! Who asks: client certificates, bearer tokens, front-proxy headers, anonymous.
