//! Tests of the whole system: the real binary with real kubectl, Chromium and Postgres.
//!
//! They are one program, so that they run concurrently: each of them mostly waits.

mod access;
mod agent;
mod aggregated_admission;
mod attacks;
mod audit;
mod backends;
mod bounds;
mod cache;
mod certificates;
mod chart;
mod cli;
mod clients;
mod clusters;
mod controller_flags;
mod corpus;
mod crash;
mod credentials;
mod custom_resources;
mod dependencies;
mod disclosure;
mod documents;
mod explain;
mod failover;
mod get;
mod graph;
mod handler_chain;
mod identity;
mod informers;
mod interpret;
mod join;
mod journal;
mod kubectl;
mod least_privilege;
mod load;
mod logs;
mod mcp;
mod metrics;
mod oidc;
mod operations;
mod paths;
mod plan;
mod proxies;
mod quickstart;
mod quotas;
mod refusals;
mod register;
mod release;
mod restart;
mod scenarios;
mod search;
mod secrets;
mod serve;
mod services;
mod shapes;
mod signin;
mod sim;
mod taints;
mod tasks;
mod tenants;
mod traces;
mod ui;
mod visual;
mod webhooks;

/// Makes ring the cryptography provider of rustls in this process. Tests that use TLS themselves call it first.
fn use_ring() {
    // An error means that another test has done so already.
    drop(rustls::crypto::ring::default_provider().install_default());
}
