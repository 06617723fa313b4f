//! The Kubernetes API server: HTTP, discovery, OpenAPI, CRDs, admission plugins, aggregation, and the controllers
//! that every control plane needs. Knows no Karmada kinds. `server/sim/` and `server/` build control planes and
//! simulated members from it.
//!
//! Based on `crowsnest-builtin` (built-in kinds), `crowsnest-registry` (storage, CRUD, watch, RBAC),
//! `crowsnest-cel`, `crowsnest-schema` and `crowsnest-apiserver`.

mod addresses;
pub mod admission;
mod advertise;
pub mod aggregation;
pub mod controllers;
pub mod crd;
pub mod discovery;
pub mod http;
pub mod openapi;
pub mod server;
pub mod services;

pub use server::{ApiServer, Config, Data, RequestOptions};
