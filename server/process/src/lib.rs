//! Infrastructure that all server processes share: listeners and their TLS, responses, client certificate authorities,
//! files that are reloaded when they change, the data directory, signals.
//!
//! This crate depends neither on Karmada's kinds nor on the command line.

pub mod client_ca;
pub mod client_certificate;
pub mod data_dir;
pub mod origin;
pub mod reload;
pub mod reply;
pub mod serving;
pub mod signals;
