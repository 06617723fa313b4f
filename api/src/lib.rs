//! crowsnest-api
