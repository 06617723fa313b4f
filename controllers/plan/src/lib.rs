//! Pure decision functions of the controllers: no runtime, client, clock or random source. Every input is an
//! argument, and each decision is returned with a report of its reasons. Controllers read the cache, call these
//! functions and write the result.

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
