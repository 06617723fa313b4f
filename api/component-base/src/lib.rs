//! Mechanisms that all components share: retries, detection of bursts, token buckets, kubeconfig files, TLS of outgoing
//! requests, bodies of bounded size, lines of streams, owned tasks, client metrics and spans.
//!
//! This crate does not depend on Karmada's API types.

pub mod body;
pub mod burst;
pub mod client_errors;
pub mod kubeconfig;
pub mod lines;
pub mod metrics;
pub mod requests;
pub mod retry;
pub mod spans;
pub mod tasks;
pub mod tls;
pub mod token_bucket;
pub mod user_agent;
