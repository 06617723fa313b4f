//! crowsnest-index
