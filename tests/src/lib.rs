//! crowsnest-tests
