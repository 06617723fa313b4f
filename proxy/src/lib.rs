//! crowsnest-proxy
