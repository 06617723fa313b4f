//! Decisions. Every function here is pure: no runtime, no client, no clock, no random source; what a decision needs
//! is an argument, and what it decides comes with a report of why. Controllers read the cache, call these functions and write
//! what they decide.

pub mod access;
pub mod agents;
pub mod annotations;
pub mod autoscaling;
pub mod certificates;
pub mod clusters;
pub mod conditions;
pub mod dependencies;
pub mod descheduling;
pub mod estimation;
pub mod eviction;
pub mod gates;
pub mod health;
pub mod journal;
pub mod multicluster_ingresses;
pub mod multicluster_services;
pub mod overriding;
pub mod propagation;
pub mod quota;
pub mod rebalance;
pub mod reference;
pub mod remedies;
pub mod report;
pub mod retaining;
pub mod scheduling;
pub mod selector;
pub mod services;
pub mod status;
pub mod taint_policies;
pub mod waiting;
pub mod whatif;
pub mod work;
