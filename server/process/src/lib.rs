//! What every server process needs, whatever it serves: listeners and their TLS, responses, authorities of clients, files that are read again, the
//! data directory, signals.
//!
//! This crate knows no kind of Karmada and no command line.

pub mod client_ca;
pub mod client_certificate;
pub mod data_dir;
pub mod reload;
pub mod reply;
pub mod serving;
pub mod signals;
