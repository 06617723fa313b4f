//! A generic Kubernetes API server: storage, CRUD, patch, watch, discovery, OpenAPI, tables, CRDs, admission, RBAC, aggregation.
//! Knows no Karmada kinds. `controllers/` are those a control plane cannot do without. `server/sim/` and `server/` build control planes
//! and simulated members from it.

mod addresses;
pub mod admission;
mod advertise;
pub mod aggregation;
pub mod apply;
pub mod audit;
pub mod authentication;
pub mod authn;
pub mod authz;
pub mod builtin;
pub mod cel;
pub mod controllers;
pub mod crd;
pub mod discovery;
pub mod error;
pub mod http;
pub mod openapi;
pub mod outbound;
pub mod patch;
mod regexp;
pub mod registry;
pub mod schema;
pub mod server;
pub mod services;
pub mod status;
pub mod storage;
pub mod table;

pub use server::{ApiServer, Config, Data};
