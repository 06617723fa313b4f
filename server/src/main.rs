//! The `crowsnest` binary.
fn main() {}
